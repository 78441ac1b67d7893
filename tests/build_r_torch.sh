#!/bin/bash
# Build R's torch 0.17 in FOLDER from CHECKOUT, a copy of the repository mlverse/torch: 40 minutes on two busy cores.
# Usage: build_r_torch.sh CHECKOUT FOLDER [PACKAGE...]     PACKAGE: sources of R's coro and safetensors, where missing
# Then:  export TORCH_HOME=FOLDER/home R_LIBS=FOLDER/lib; make test-rtorch
# Requires g++, R with Rcpp, and the packages that torch imports. Debian's: r-cran-rcpp r-cran-bit64 r-cran-callr r-cran-cli
# r-cran-desc r-cran-glue r-cran-jsonlite r-cran-magrittr r-cran-r6 r-cran-rlang r-cran-scales r-cran-withr.
# A build that was interrupted continues.
set -euo pipefail
checkout=$(cd "$1" && pwd)
mkdir -p "$2/lib" "$2/home/lib" "$2/objects"
folder=$(cd "$2" && pwd)
shift 2

# LibTorch 2.8.0 is a part of PyTorch's wheel, here the build with CUDA, whose CPU library needs two small libraries of CUDA.
[ -e "$folder/venv" ] || python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-deps --no-compile torch==2.8.0 nvidia-cuda-cupti-cu12==12.8.90 \
    nvidia-cuda-runtime-cu12==12.8.90
site=$(echo "$folder"/venv/lib/python3*/site-packages)
libtorch=$site/torch

# lantern, the C interface of LibTorch that R's torch loads. CMake would also download LibTorch.
export folder libtorch
compile() {
    local object
    object=$folder/objects/$(echo "$1" | tr / _).o
    [ -f "$object" ] && return
    g++ -std=c++17 -O1 -fPIC -D_GLIBCXX_USE_CXX11_ABI=1 -DLANTERN_BUILD -w -Iinclude -Isrc -I"$libtorch/include" \
        -I"$libtorch/include/torch/csrc/api/include" -c "src/$1.cpp" -o "$object.tmp"
    mv "$object.tmp" "$object"
}
export -f compile
cd "$checkout/src/lantern"
# lantern.cpp takes longest and comes first. The allocators of CUDA and MPS, and sort_vert.cpp, are not for CPUs.
sources=$(cd src && find . -name '*.cpp' | sed 's|^\./||; s|\.cpp$||' | sort |
    grep -vxE 'lantern|AllocatorCuda|AllocatorMPS|.*/sort_vert')
for source in lantern $sources; do echo "$source"; done | xargs -P 2 -I{} bash -ec 'compile {}'
# Not libtorch.so, which needs all libraries of CUDA.
g++ -shared -o "$folder/home/lib/liblantern.so" "$folder"/objects/*.o -L"$libtorch/lib" -Wl,--no-as-needed -ltorch_cpu -lc10 \
    -Wl,-rpath,'$ORIGIN'
for file in "$libtorch"/lib/*.so* "$site"/nvidia/*/lib/*.so*; do ln -sf "$file" "$folder/home/lib/"; done

export R_LIBS=$folder/lib
for package in "$@"; do R CMD INSTALL --no-docs -l "$folder/lib" "$package"; done
cd "$checkout"
# Generated; copies of the repository without large files lack it.
[ -f src/RcppExports.cpp ] || Rscript -e 'Rcpp::compileAttributes(".")'
# Without optimization: the generated files are large, and their functions only call lantern.
for standard in CXX CXX11 CXX14 CXX17; do echo "${standard}FLAGS = -O0 -fPIC"; done >"$folder/makevars"
R_MAKEVARS_USER=$folder/makevars TORCH_INSTALL=0 MAKEFLAGS=-j2 R CMD INSTALL --no-docs -l "$folder/lib" .
TORCH_HOME=$folder/home Rscript -e 'library(torch); stopifnot(as.array(torch_tensor(1:2) * 2L) == c(2, 4))'
echo "export TORCH_HOME=$folder/home R_LIBS=$folder/lib"
