#!/bin/sh
# Install programs that the tests use: R with its packages and pandoc, qpdf for R CMD check --as-cran, Chromium.
#
#     tests/install_programs.sh [--required] [R] [qpdf] [Chromium]
#
# Debian's packages, installed by root or by a user whose sudo asks for no password. Elsewhere the missing programs are
# named, and their tests are skipped; with --required that is an error.
set -eu

has() {
    case $1 in
    R) command -v R && command -v pandoc &&
        Rscript -e 'for (p in c("testthat", "knitr", "rmarkdown", "roxygen2", "httr2")) loadNamespace(p)' ;;
    qpdf) command -v qpdf ;; # without it, R CMD check --as-cran warns, also about packages without a PDF
    Chromium) { command -v chromium-headless-shell || command -v chromium || command -v google-chrome; } &&
        { ! command -v ldconfig || ldconfig -p | grep libatomic.so.1; } ;;  # which playwright's driver needs
    esac >/dev/null 2>&1
}

packages() {
    case $1 in
    R) echo r-base-core r-cran-testthat r-cran-tibble r-cran-knitr r-cran-rmarkdown r-cran-roxygen2 r-cran-httr2 pandoc ;;
    qpdf) echo qpdf ;;
    Chromium) echo chromium-headless-shell libatomic1 ;;
    esac
}

required=
[ "$1" != --required ] || { required=1; shift; }
missing=
for program; do has "$program" || missing="$missing $program"; done
[ -n "$missing" ] || exit 0
wanted=$(for program in $missing; do packages "$program"; done | tr '\n' ' ')

if [ "$(id -u)" = 0 ]; then sudo=; else sudo='sudo -n'; fi
if command -v apt-get >/dev/null && $sudo true 2>/dev/null; then
    echo "Installing$missing with apt-get: this takes some minutes"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    { $sudo apt-get -q update && DEBIAN_FRONTEND=noninteractive $sudo apt-get -q -y install --no-install-recommends $wanted; } \
        >"$log" 2>&1 && exit 0
    echo "apt-get did not install$missing: $(grep '^E: ' "$log" | tail -1). When the cause is fixed, run make again" >&2
    exit 1
fi
if [ -n "$required" ]; then
    echo "Missing:$missing. Install $wanted(Debian's names), then run make again" >&2
    exit 1
fi
echo "Missing:$missing. Their tests are skipped; Debian's packages are $wanted"
