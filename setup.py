"""The one part of the package that is compiled; pyproject.toml has all the rest."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Text at the speed of memory. decoder.py opens it by ctypes: it knows nothing of Python.
        Extension(
            "minhub_py._decoder",
            ["minhub_py/native/decoder.c"],
            depends=["minhub_py/native/kernels.h"],
            extra_compile_args=["-O3", "-g0", "-pthread", "-fvisibility=hidden", "-fno-math-errno"],
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,  # without a C compiler the package works all the same, on PyTorch alone
        )
    ]
)
