"""Downloads a pinned wheel of uv and extracts its program.

    python get_uv.py FOLDER PIN... [WHEEL]

FOLDER: receives the program. PIN: file name, "=" and SHA-256 of a wheel. WHEEL: a local file
instead of a download. Prints the path of the program. Runs on Python 3.6 and later, also without
pip. The sources, in this order: the folders of UV_FIND_LINKS and PIP_FIND_LINKS, pip with its
configuration, the package index of UV_DEFAULT_INDEX, UV_INDEX or PIP_INDEX_URL, the default package
index. pip and urllib use the proxies and certificates of the environment (HTTPS_PROXY,
SSL_CERT_FILE).
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from urllib.parse import urljoin
from urllib.request import pathname2url, urlopen

DEFAULT_INDEX = "https://pypi.org/simple"
SECONDS = 60


def suitable(pins):
    """The pins of wheels for this machine."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    names = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64")}.get(
        machine, (machine,)
    )
    if sys.platform == "win32":
        system = "win"
    elif sys.platform == "darwin":
        system = "macosx"
    else:
        system = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    return {
        name: digest
        for name, digest in pins.items()
        if re.search("[-.]" + system + "_", name)
        and any(re.search("_" + end + r"\b", name) for end in names)
    }


def local_folders():
    """Folders with wheels that the user's environment names."""
    words = (
        " ".join(os.environ.get(name, "") for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"))
        .replace(",", " ")
        .split()
    )
    return [word for word in words if os.path.isdir(word)]


def by_pip(pins, folder):
    """The path of a wheel that pip downloads, with its configuration."""
    version = next(iter(pins)).split("-")[1]
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w") as file:
        hashes = " ".join("--hash=sha256:" + digest for digest in pins.values())
        file.write("uv==" + version + " " + hashes + "\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    options = [
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--retries",
        "1",
        "--dest",
        folder,
        "-r",
        requirements,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    result = subprocess.run(
        command + options,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=environment,
    )
    if result.returncode:
        raise OSError(
            result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "pip failed"
        )
    return next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".whl"))


def by_index(pins, folder):
    """A wheel's path from a package index."""
    named = (
        os.environ.get(name)
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
    )
    index = next((words.split()[0].split("=", 1)[-1] for words in named if words), DEFAULT_INDEX)
    if os.path.isdir(index):
        index = "file:" + pathname2url(os.path.abspath(index))
    page = index.rstrip("/") + "/uv/"
    address = page + "index.html" if page.startswith("file:") else page
    with urlopen(address, timeout=SECONDS) as answer:
        links = re.findall('href="([^"#]+)', answer.read().decode("utf-8"))
    for link in links:
        name = link.rpartition("/")[2]
        if name in pins:
            path = os.path.join(folder, name)
            with urlopen(urljoin(page, link), timeout=SECONDS) as answer, open(path, "wb") as file:
                file.write(answer.read())
            return path
    raise OSError(
        page + " has no wheel of uv " + next(iter(pins)).split("-")[1] + " for this machine"
    )


def checked(path, pins):
    """A wheel's path, after a check of its SHA-256."""
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest not in pins.values():
        raise OSError(path + " is not the pinned wheel of uv: its SHA-256 is " + digest)
    return path


def extract(wheel, folder):
    """Extract a wheel's program uv. Returns its path."""
    name = "uv.exe" if sys.platform == "win32" else "uv"
    with zipfile.ZipFile(wheel) as archive:
        member = next(item for item in archive.namelist() if item.endswith(".data/scripts/" + name))
        content = archive.read(member)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    temporary = path + "." + str(os.getpid())  # another session may run the old program
    with open(temporary, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)
    return path


def fetch(pins, folder):
    """A checked wheel's path. OSError: no source has it; the message lists the attempts."""
    for source in local_folders():
        for name in pins:
            if os.path.exists(os.path.join(source, name)):
                return checked(os.path.join(source, name), pins)
    problems = []
    for way in (by_pip, by_index):
        try:
            return checked(way(pins, folder), pins)
        except (OSError, StopIteration, ValueError) as error:
            problems.append(str(error))
    raise OSError("; ".join(problems))


def main(arguments):
    """The exit status. The path or the problem is printed after the word minhubpy."""
    folder, items = arguments[0], arguments[1:]
    pins = suitable(dict(item.split("=") for item in items if "=" in item))
    wheels = [item for item in items if "=" not in item]
    try:
        if not pins:
            raise OSError("there is no wheel of uv for this kind of machine")
        with tempfile.TemporaryDirectory() as temporary:
            path = extract(checked(wheels[0], pins) if wheels else fetch(pins, temporary), folder)
    except (OSError, zipfile.BadZipFile) as error:
        print("minhubpy problem " + " ".join(str(error).split()))
        return 1
    print("minhubpy " + path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
