"""The one part of the package that is compiled; pyproject.toml has all the rest."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Text at the speed of memory. compiled.py opens it by ctypes: it knows nothing of Python.
        Extension(
            "minhub_py.inference._decoder",
            ["minhub_py/inference/native/decoder.c"],
            depends=["minhub_py/inference/native/kernels.h", "minhub_py/inference/native/tiles.h"],
            extra_compile_args=["-O3", "-g0", "-pthread", "-fvisibility=hidden", "-fno-math-errno"],
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,  # without a C compiler the package works all the same, on PyTorch alone
        )
    ]
)
