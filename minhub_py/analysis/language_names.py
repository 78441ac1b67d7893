"""English names of languages, and the codes of a translation model that they mean.

Source: ISO 639-1 and 639-3 for the languages of NLLB, M2M100 and mBART-50. A model has one of the
codes of a language, with or without a script or region: deu_Latn, de_DE, __de__ or >>deu<<.
"""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 12  # codes in a message
# Name -> the codes of the language and of its individual languages
CODES = {
    "Achinese": "ace", "Afrikaans": "af afr", "Akan": "ak aka", "Albanian": "sq als sqi", "Amharic": "am amh",
    "Arabic": "ar ara arb", "Armenian": "hy hye", "Assamese": "as asm", "Asturian": "ast", "Awadhi": "awa",
    "Aymara": "ay aym ayr", "Azerbaijani": "az aze azj", "Balinese": "ban", "Bambara": "bm bam", "Banjar": "bjn",
    "Bashkir": "ba bak", "Basque": "eu eus", "Belarusian": "be bel", "Bemba": "bem", "Bengali": "bn ben",
    "Bhojpuri": "bho", "Bokmal": "nb no nob nor", "Bosnian": "bs bos", "Breton": "br bre", "Buginese": "bug",
    "Bulgarian": "bg bul", "Burmese": "my mya", "Cantonese": "yue", "Castilian": "es spa", "Catalan": "ca cat",
    "Cebuano": "ceb", "Central Kurdish": "ckb", "Chhattisgarhi": "hne", "Chichewa": "ny nya", "Chinese": "zh zho",
    "Chokwe": "cjk", "Chuvash": "cv chv", "Crimean Tatar": "crh", "Croatian": "hr hrv", "Czech": "cs ces",
    "Danish": "da dan", "Dari": "prs", "Dutch": "nl nld", "Dyula": "dyu", "Dzongkha": "dz dzo",
    "Egyptian Arabic": "arz", "English": "en eng", "Esperanto": "eo epo", "Estonian": "et est", "Ewe": "ee ewe",
    "Faroese": "fo fao", "Farsi": "fa fas pes", "Fijian": "fj fij", "Filipino": "tl tgl", "Finnish": "fi fin",
    "Flemish": "nl nld", "Fon": "fon", "French": "fr fra", "Frisian": "fy fry", "Friulian": "fur",
    "Fula": "ff ful fuv", "Gaelic": "gd gla", "Galician": "gl glg", "Ganda": "lg lug", "Georgian": "ka kat",
    "German": "de deu", "Greek": "el ell", "Guarani": "gn grn", "Gujarati": "gu guj", "Haitian Creole": "ht hat",
    "Hausa": "ha hau", "Hawaiian": "haw", "Hebrew": "he heb", "Hindi": "hi hin", "Hungarian": "hu hun",
    "Icelandic": "is isl", "Ido": "io ido", "Igbo": "ig ibo", "Iloko": "ilo", "Indonesian": "id ind",
    "Interlingua": "ia ina", "Irish": "ga gle", "Italian": "it ita", "Japanese": "ja jpn", "Javanese": "jv jav",
    "Kabiyè": "kbp", "Kabuverdianu": "kea", "Kabyle": "kab", "Kachin": "kac", "Kamba": "kam", "Kannada": "kn kan",
    "Kanuri": "kr kau knc", "Kashmiri": "ks kas", "Kazakh": "kk kaz", "Khmer": "km khm", "Kikuyu": "ki kik",
    "Kimbundu": "kmb", "Kinyarwanda": "rw kin", "Kongo": "kg kon", "Korean": "ko kor", "Kurdish": "ku kmr kur",
    "Kurmanji": "ku kmr kur", "Kyrgyz": "ky kir", "Lao": "lo lao", "Latgalian": "ltg", "Latin": "la lat",
    "Latvian": "lv lav lvs", "Levantine Arabic": "apc", "Ligurian": "lij", "Limburgish": "li lim",
    "Lingala": "ln lin", "Lithuanian": "lt lit", "Lombard": "lmo", "Luba-Lulua": "lua", "Luo": "luo", "Lushai": "lus",
    "Luxembourgish": "lb ltz", "Macedonian": "mk mkd", "Magahi": "mag", "Maithili": "mai", "Malagasy": "mg mlg plt",
    "Malay": "ms msa zsm", "Malayalam": "ml mal", "Maltese": "mt mlt", "Mandarin": "zh zho", "Manipuri": "mni",
    "Manx": "gv glv", "Maori": "mi mri", "Marathi": "mr mar", "Mesopotamian Arabic": "acm", "Minangkabau": "min",
    "Mongolian": "mn khk mon", "Moroccan Arabic": "ary", "Mossi": "mos", "Myanmar": "my mya", "Najdi Arabic": "ars",
    "Nepali": "ne nep npi", "Northern Sami": "se sme", "Northern Sotho": "ns nso", "Norwegian": "nb no nob nor",
    "Norwegian Nynorsk": "nn nno", "Nuer": "nus", "Nynorsk": "nn nno", "Occitan": "oc oci", "Odia": "or ori ory",
    "Oriya": "or ori ory", "Oromo": "om gaz orm", "Ossetian": "os oss", "Pangasinan": "pag", "Panjabi": "pa pan",
    "Papiamento": "pap", "Pashto": "ps pbt pus", "Pedi": "ns nso", "Persian": "fa fas pes", "Polish": "pl pol",
    "Portuguese": "pt por", "Punjabi": "pa pan", "Quechua": "qu que quy", "Romanian": "ro ron", "Rundi": "rn run",
    "Russian": "ru rus", "Samoan": "sm smo", "Sango": "sg sag", "Sanskrit": "sa san", "Santali": "sat",
    "Sardinian": "sc srd", "Scottish Gaelic": "gd gla", "Serbian": "sr srp", "Shan": "shn", "Shona": "sn sna",
    "Sicilian": "scn", "Silesian": "szl", "Sindhi": "sd snd", "Sinhala": "si sin", "Sinhalese": "si sin",
    "Slovak": "sk slk", "Slovenian": "sl slv", "Somali": "so som", "Sorani": "ckb", "South Azerbaijani": "azb",
    "South Levantine Arabic": "ajp", "Southern Sotho": "st sot", "Southwestern Dinka": "dik", "Spanish": "es spa",
    "Sundanese": "su sun", "Swahili": "sw swa swh", "Swati": "ss ssw", "Swedish": "sv swe",
    "Ta'izzi-Adeni Arabic": "acq", "Tagalog": "tl tgl", "Tahitian": "ty tah", "Tajik": "tg tgk", "Tamasheq": "taq",
    "Tamazight": "tzm", "Tamil": "ta tam", "Tatar": "tt tat", "Telugu": "te tel", "Thai": "th tha",
    "Tibetan": "bo bod", "Tigrinya": "ti tir", "Tok Pisin": "tpi", "Tsonga": "ts tso", "Tswana": "tn tsn",
    "Tumbuka": "tum", "Tunisian Arabic": "aeb", "Turkish": "tr tur", "Turkmen": "tk tuk", "Twi": "tw twi",
    "Ukrainian": "uk ukr", "Umbundu": "umb", "Urdu": "ur urd", "Uyghur": "ug uig", "Uzbek": "uz uzb uzn",
    "Valencian": "ca cat", "Venetian": "vec", "Vietnamese": "vi vie", "Volapük": "vo vol", "Walloon": "wa wln",
    "Waray": "war", "Welsh": "cy cym", "Wolof": "wo wol", "Xhosa": "xh xho", "Yiddish": "yi ydd yid",
    "Yoruba": "yo yor", "Zulu": "zu zul",
}  # fmt: skip
BY_NAME = {name.casefold(): codes.split() for name, codes in CODES.items()}


def language_code(language: str, codes: Iterable[str]) -> str:
    """A language's code, by its name or another code, among a model's codes.

    ValueError: the model lacks the language, or has several codes for it.
    """
    codes = list(codes)
    if language in codes:
        return language
    key = language.strip().casefold()
    named = BY_NAME.get(key)
    if named is None:  # a code, of which the model may have another form
        base = base_of(key)
        named = [base] + [code for group in BY_NAME.values() if base in group for code in group]
    matches = [code for code in codes if base_of(code) in named]
    exact = [code for code in matches if code.casefold() == key.replace("-", "_")]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise ValueError(
            f"the model has several codes for {language!r}: use one of {', '.join(matches)}"
        )
    close = get_close_matches(key, [*codes, *(name.casefold() for name in names_of(codes))], 1)
    advice = f"did you mean {close[0]}?" if close else f"its codes are {listed(codes)}"
    raise ValueError(f"the model has no language {language!r}: {advice}")


def base_of(code: str) -> str:
    """A code without region and script: "en" of "en_XX"."""
    return code.replace("-", "_").partition("_")[0].casefold()


def listed(codes: list[str]) -> str:
    """The first codes of a list, and their number."""
    shown = ", ".join(codes[:MAX_LISTED])
    return shown if len(codes) <= MAX_LISTED else f"{shown}, … ({len(codes)} in all)"


def names_of(codes: Iterable[str]) -> list[str]:
    """The names of the languages with these codes."""
    bases = {base_of(code) for code in codes}
    return [name for name, named in CODES.items() if bases & set(named.split())]
