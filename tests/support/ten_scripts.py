"""Sentences in ten scripts, and texts of their words and characters."""

import random
import unicodedata
from collections.abc import Iterator

SENTENCES = {
    "Latin": "The quick brown fox isn't lazy; it costs 3,50 € – ça va, müde Füße, ﬁne ½ ｆｕｌｌ.",
    "Cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак і ґанок.",
    "Greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τί ἐστιν ἀλήθεια; Όχι σήμερα.",
    "Arabic": "مرحبا بالعالم، كيف حالك؟ اللُّغَةُ العربيّة جميلة، ۱۲۳ و ٤٥٦. ﻻ ﷺ",
    "Hebrew": "שלום עולם, מה שלומך? בְּרֵאשִׁית בָּרָא אֱלֹהִים, ״צה״ל״.",
    "Devanagari": "नमस्ते दुनिया, आप कैसे हैं? क़लम और ज़िन्दगी। संस्कृतम् १२३ ड़ाक",
    "Thai": "สวัสดีชาวโลก วันนี้อากาศดีมาก น้ำใจ กำลัง ๑๒๓ ฿๕๐",
    "Hangul": "안녕하세요 세계, 오늘은 날씨가 좋습니다. 한국어 ㄱㄴㄷ 각",
    "Han": "你好，世界！今天天气很好。漢字與繁體字，「引號」、㈱ ㎏ ①。",
    "Kana": "こんにちは世界、今日はいい天気です。カタカナ ｶﾀｶﾅ がぎぐ が",
}


def texts(count: int = 500) -> Iterator[str]:
    """The sentences, and random sequences of words and of characters, in each script and mixed.

    Combining marks are within words only: sentencepiece.py describes the others.
    """
    yield from SENTENCES.values()
    rng, sentences = random.Random(0), [*SENTENCES.values()]
    yield from (
        "",
        " ",
        "  a  b ",
        "\u00a0x\u3000y\tz\nw",
        "e\u0301 a\u0308 \u0301x",
        "😀 a😀b 👩‍👧 ☺️",
    )
    for number in range(count - len(SENTENCES) - 6):
        source = sentences[number % 10] if number % 3 else " ".join(sentences)
        if number % 4 == 3:
            characters = [char for char in source if unicodedata.category(char)[0] != "M"]
            yield "".join(rng.choices(characters, k=number % 40 + 1))
        else:
            words = rng.choices(source.split(), k=number % 15 + 1)
            yield "".join(word + rng.choice([" ", " ", " ", "  ", ""]) for word in words)
