"""What is installed. frontend/, ad/ and backends/ are reached through links in loma/."""

import os
import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
README = ROOT / "README.md"
CONFIG = (ROOT / "loma" / "config.py").read_text(encoding="utf-8")
(VERSION,) = re.findall('^VERSION = "(.+?)"', CONFIG, re.M)

DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"]
EDITOR = ["lsprotocol>=2025.0.0", "pygls>=2,<3"]
# What the Capsule Network's commands and the pictures of examples and benchmarks need besides.
MATPLOTLIB = "matplotlib>=3.8,<4"
CAPSNET = [
    MATPLOTLIB,
    "scikit-learn>=1.4,<2",
    "scipy>=1.10,<2",
    "tensorboard>=2.14,<3",
]

# Where the repository is public: whoever publishes a wheel says so, as these files lie anywhere.
URL = os.environ.get("LOMA_URL", "").rstrip("/")
URLS = {
    "Source": URL,
    "Documentation": f"{URL}/tree/main/docs",
    "Changelog": f"{URL}/blob/main/CHANGELOG.md",
    "Issues": f"{URL}/issues",
}

setup(
    name="loma-torch",  # the name `loma` is another project's; the import is `loma`
    version=VERSION,
    description="A differentiable language for tensor programs that compiles to libtorch",
    long_description=README.read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    author="The loma authors",
    project_urls=URLS if URL else {},
    keywords=["automatic differentiation", "compiler", "pytorch", "capsule network"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Code Generators",
        "Topic :: Software Development :: Compilers",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=[
        "loma",
        "loma.cache",
        "loma.core",
        "loma.embedded",
        "loma.errors",
        "loma.tools",
        "loma.tools.editor",
        "loma.tuning",
        "loma.nn",
        "loma.optim",
        "loma.arithmetic",
        "loma.passes",
        "loma.passes.canonical",
        "loma.passes.canonical.dimensions",
        "loma.passes.canonical.elementary",
        "loma.passes.canonical.operators",
        "loma.passes.canonical.recurrences",
        "loma.passes.device",
        "loma.frontend",
        "loma.frontend.expressions",
        "loma.frontend.statements",
        "loma.frontend.syntax",
        "loma.ad",
        "loma.ad.scalar",
        "loma.ad.tensor",
        "loma.backends",
        "loma.backends.c",
        "loma.backends.cfamily",
        "loma.backends.cuda",
        "loma.backends.interpreter",
        "loma.backends.kernels",
        "loma.backends.lowering",
        "loma.backends.lowering.functions",
        "loma.backends.openmp",
        "loma.backends.scalar",
        "loma.backends.schedule",
        "loma.backends.torch",
        "capsnet_loma",
        "capsnet_loma.commands",
        "capsnet_loma.profiling",
        "capsnet_loma.data",
        "capsnet_loma.evaluation",
        "capsnet_loma.training",
    ],
    package_data={
        "": [
            "*.loma",
            "py.typed",
            "templates/*.j2",
            "runtime/*.h",
            "runtime/*.cpp",
            "runtime/*/*.h",
            "runtime/*/*.cpp",
            "device/*.h",
            "device/*/*.h",
            "native/*.cpp",
            "native/*.h",
            "native/*.j2",
        ],
    },
    entry_points={
        "console_scripts": [
            "loma=loma.tools.cli:main",
            "capsnet-loma=capsnet_loma.commands.cli:main",
        ],
        "pygments.lexers": ["loma=loma.embedded.lexer:LomaLexer"],
    },
    install_requires=[
        "torch>=2.6,<3",
        "numpy>=1.26,<3",
        "pybind11>=2.13,<4",
        "jinja2>=3.1,<4",
        "filelock>=3.12,<5",
        "psutil>=5.9,<8",
        "click>=8.2,<9",
        "rich>=13,<16",
    ],
    extras_require={
        "capsnet": CAPSNET,
        "docs": DOCS,  # mkdocs build
        "editor": EDITOR,  # loma language-server
        "notebook": ["ipykernel>=6.29", "ipython>=8.12", "nbclient>=0.10", "pygments>=2.15"],
        "plot": [MATPLOTLIB],  # loma tune --plot
        "test": [
            *CAPSNET,
            "pytest>=8",
            "pytest-xdist>=3.8",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "mypy>=1.11",
            "nbclient>=0.10",
            "ipykernel>=6.29",
            *DOCS,
            *EDITOR,
            "setuptools>=70.1",  # builds wheels by itself
        ],
    },
    zip_safe=False,
)
