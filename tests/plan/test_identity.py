"""Law: the identity of a function changes when, and only when, what it computes by its own source can change.

Programs are written to files and imported, once as they were and once as they are.
"""

from __future__ import annotations
import __future__

import importlib
import linecache
import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import polars as pl
import pytest

from riverrun.errors import PlanError
from riverrun.plan import function_source, identity
from riverrun.plan.function_source import bytecode_of, source_of
from riverrun.plan.identity import Walk, code_of
from tests.soaking import seeds

Files = dict[str, str] | str


@contextmanager
def modules(folder: Path, files: Files) -> Iterator[Callable[[str], Any]]:
    """Modules of these texts, for as long as this lasts; what is given finds ``module:name`` in them."""
    texts = {"app": files} if isinstance(files, str) else files
    folder.mkdir(parents=True, exist_ok=True)
    for module, text in texts.items():
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    for package in {each.partition(".")[0] for each in texts if "." in each}:
        (folder / package / "__init__.py").touch()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()

    def find(name: str) -> Any:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)

    try:
        yield find
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = written
        tops = {each.partition(".")[0] for each in texts}
        for each in set(sys.modules) - before:
            if each.partition(".")[0] in tops:
                del sys.modules[each]


_folders = iter(range(1_000_000))


def word(tmp_path: Path, files: Files, name: str = "app:score") -> str:
    with modules(tmp_path / f"program{next(_folders)}", files) as find:
        return code_of(find(name))


CALLS = "def score(row):\n    return [normalise(row)]\n"

CHANGED: dict[str, tuple[Files, Files]] = {
    "its body": ("def score(row): return row + 1", "def score(row): return row + 2"),
    "a default value": ("def score(row, n=1): return row + n", "def score(row, n=2): return row + n"),
    "a default by name": ("def score(row, *, n=1): return row", "def score(row, *, n=2): return row"),
    "a default from elsewhere": (
        "N = 1\ndef score(row, n=N): return row + n", "N = 2\ndef score(row, n=N): return row + n",
    ),
    "what it closes over": (
        "def made(n):\n    return lambda row: row + n\nscore = made(1)",
        "def made(n):\n    return lambda row: row + n\nscore = made(2)",
    ),
    "a helper": (
        f"def normalise(n): return n * 1\n{CALLS}", f"def normalise(n): return n * 2\n{CALLS}",
    ),
    "a helper of a helper": (
        f"def clean(n): return n\ndef normalise(n): return clean(n)\n{CALLS}",
        f"def clean(n): return -n\ndef normalise(n): return clean(n)\n{CALLS}",
    ),
    "functions that call each other": (
        "def score(n): return n and other(n - 1)\ndef other(n): return n and score(n - 1)",
        "def score(n): return n and other(n - 1)\ndef other(n): return n and score(n - 2)",
    ),
    "a helper in another module": (
        {"app": f"from cleaning import normalise\n{CALLS}", "cleaning": "def normalise(n): return n"},
        {"app": f"from cleaning import normalise\n{CALLS}", "cleaning": "def normalise(n): return -n"},
    ),
    "a helper behind a module": (
        {"app": "import cleaning\ndef score(n): return cleaning.normalise(n)",
         "cleaning": "def normalise(n): return n"},
        {"app": "import cleaning\ndef score(n): return cleaning.normalise(n)",
         "cleaning": "def normalise(n): return -n"},
    ),
    "a helper behind a package": (
        {"app": "import shop.rates as r\ndef score(n): return r.normalise(n)",
         "shop.rates": "from shop.deep import least\ndef normalise(n): return n > least",
         "shop.deep": "least = 1"},
        {"app": "import shop.rates as r\ndef score(n): return r.normalise(n)",
         "shop.rates": "from shop.deep import least\ndef normalise(n): return n > least",
         "shop.deep": "least = 2"},
    ),
    "a module as a whole": (
        {"app": "import rules\ndef score(n): return getattr(rules, 'f' + n)(n)", "rules": "def f1(n): return n"},
        {"app": "import rules\ndef score(n): return getattr(rules, 'f' + n)(n)", "rules": "def f1(n): return -n"},
    ),
    "what it imports itself": (
        {"app": "def score(n):\n    from cleaning import normalise\n    return normalise(n)",
         "cleaning": "def normalise(n): return n"},
        {"app": "def score(n):\n    from cleaning import normalise\n    return normalise(n)",
         "cleaning": "def normalise(n): return -n"},
    ),
    "a module that it imports itself": (
        {"app": "def score(n):\n    import shop.rates\n    return shop.rates.normalise(n)",
         "shop.rates": "def normalise(n): return n"},
        {"app": "def score(n):\n    import shop.rates\n    return shop.rates.normalise(n)",
         "shop.rates": "def normalise(n): return -n"},
    ),
    "a method": (
        "class Rules:\n    def keep(self, n): return n\ndef score(n): return Rules().keep(n)",
        "class Rules:\n    def keep(self, n): return -n\ndef score(n): return Rules().keep(n)",
    ),
    "a method of a class that its class is made of": (
        "class Base:\n    def keep(self, n): return n\nclass Rules(Base): pass\ndef score(n): return Rules().keep(n)",
        "class Base:\n    def keep(self, n): return -n\nclass Rules(Base): pass\ndef score(n): return Rules().keep(n)",
    ),
    "a static method": (
        "class Rules:\n    @staticmethod\n    def keep(n): return n\ndef score(n): return Rules.keep(n)",
        "class Rules:\n    @staticmethod\n    def keep(n): return -n\ndef score(n): return Rules.keep(n)",
    ),
    "a method of a class": (
        "class Rules:\n    @classmethod\n    def keep(c, n): return n\nscore = Rules.keep",
        "class Rules:\n    @classmethod\n    def keep(c, n): return -n\nscore = Rules.keep",
    ),
    "a property": (
        "class Rules:\n    @property\n    def n(self): return 1\nrules = Rules()\ndef score(n): return rules.n",
        "class Rules:\n    @property\n    def n(self): return 2\nrules = Rules()\ndef score(n): return rules.n",
    ),
    "an attribute of a class": (
        "class Rules:\n    least = 1\ndef score(n): return n > Rules.least",
        "class Rules:\n    least = 2\ndef score(n): return n > Rules.least",
    ),
    "an attribute of a class, set later": (
        "class Rules:\n    least = 1\nRules.least = 3\ndef score(n): return n > Rules.least",
        "class Rules:\n    least = 1\nRules.least = 4\ndef score(n): return n > Rules.least",
    ),
    "a helper of a method": (
        "def f(n): return n\nclass Rules:\n    def keep(self, n): return f(n)\ndef score(n): return Rules().keep(n)",
        "def f(n): return -n\nclass Rules:\n    def keep(self, n): return f(n)\ndef score(n): return Rules().keep(n)",
    ),
    "an object that is called": (
        "class Score:\n    def __init__(self, n): self.n = n\n    def __call__(self, m): return m\nscore = Score(1)",
        "class Score:\n    def __init__(self, n): self.n = n\n    def __call__(self, m): return m\nscore = Score(2)",
    ),
    "an object's list": (
        "class Score:\n    def __init__(self, n): self.n = n\n    def __call__(self, m): return m\n"
        "score = Score([{'a': 1}])",
        "class Score:\n    def __init__(self, n): self.n = n\n    def __call__(self, m): return m\n"
        "score = Score([{'a': 2}])",
    ),
    "a data class": (
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass Rules:\n    least: int\n"
        "RULES = Rules(1)\ndef score(n): return n > RULES.least",
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass Rules:\n    least: int\n"
        "RULES = Rules(2)\ndef score(n): return n > RULES.least",
    ),
    "a default of a data class": (
        "from dataclasses import dataclass\n@dataclass\nclass Rules:\n    least: int = 1\n"
        "def score(n): return n > Rules().least",
        "from dataclasses import dataclass\n@dataclass\nclass Rules:\n    least: int = 2\n"
        "def score(n): return n > Rules().least",
    ),
    "what a field of a data class is made by": (
        "from dataclasses import dataclass, field\ndef made(): return 1\n@dataclass\nclass Rules:\n"
        "    least: int = field(default_factory=made)\ndef score(n): return n > Rules().least",
        "from dataclasses import dataclass, field\ndef made(): return 2\n@dataclass\nclass Rules:\n"
        "    least: int = field(default_factory=made)\ndef score(n): return n > Rules().least",
    ),
    "a named tuple": (
        "from typing import NamedTuple\nclass Rules(NamedTuple):\n    least: int\nRULES = Rules(1)\n"
        "def score(n): return RULES.least",
        "from typing import NamedTuple\nclass Rules(NamedTuple):\n    least: int\nRULES = Rules(2)\n"
        "def score(n): return RULES.least",
    ),
    "an enum": (
        "from enum import Enum\nclass Size(Enum):\n    SMALL = 1\ndef score(n): return n > Size.SMALL.value",
        "from enum import Enum\nclass Size(Enum):\n    SMALL = 2\ndef score(n): return n > Size.SMALL.value",
    ),
    "a member of an enum": (
        "from enum import IntEnum\nclass Size(IntEnum):\n    A = 1\n    B = 2\nLEAST = Size.A\n"
        "def score(n): return n > LEAST",
        "from enum import IntEnum\nclass Size(IntEnum):\n    A = 1\n    B = 2\nLEAST = Size.B\n"
        "def score(n): return n > LEAST",
    ),
    "a decorator": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def called(n): return f(n) * 2\n"
        "    return called\n"
        "@twice\ndef score(n): return n",
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def called(n): return f(n) * 3\n"
        "    return called\n"
        "@twice\ndef score(n): return n",
    ),
    "a function that is decorated": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def called(n): return f(n) * 2\n"
        "    return called\n"
        "@twice\ndef score(n): return n",
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def called(n): return f(n) * 2\n"
        "    return called\n"
        "@twice\ndef score(n): return n + 1",
    ),
    "a function in a cache": (
        f"import functools\n@functools.lru_cache\ndef normalise(n): return n\n{CALLS}",
        f"import functools\n@functools.lru_cache\ndef normalise(n): return -n\n{CALLS}",
    ),
    "a function decorated by a library": (
        "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield 1\ndef score(n):\n"
        "    with f() as m: return m",
        "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield 2\ndef score(n):\n"
        "    with f() as m: return m",
    ),
    "a function by type": (
        f"import functools\n@functools.singledispatch\ndef normalise(n): return n\n@normalise.register(int)\n"
        f"def _(n): return n\n{CALLS}",
        f"import functools\n@functools.singledispatch\ndef normalise(n): return n\n@normalise.register(int)\n"
        f"def _(n): return -n\n{CALLS}",
    ),
    "what a partial holds": (
        "import functools\ndef f(n, m): return n\nscore = functools.partial(f, 1)",
        "import functools\ndef f(n, m): return n\nscore = functools.partial(f, 2)",
    ),
    "what a partial holds by name": (
        "import functools\ndef f(n, m): return n\nscore = functools.partial(f, m=1)",
        "import functools\ndef f(n, m): return n\nscore = functools.partial(f, m=2)",
    ),
    "the function of a partial": (
        "import functools\ndef f(n, m): return n\nscore = functools.partial(f, 1)",
        "import functools\ndef f(n, m): return m\nscore = functools.partial(f, 1)",
    ),
    "a lambda in a list": (
        "RULES = [lambda n: n, lambda n: n + 1]\ndef score(n): return [f(n) for f in RULES]",
        "RULES = [lambda n: n, lambda n: n + 2]\ndef score(n): return [f(n) for f in RULES]",
    ),
    "which lambda of a line": (
        "one, score = lambda n: n + 1, lambda n: n + 2", "score, one = lambda n: n + 1, lambda n: n + 2",
    ),
    "a lambda in a lambda": (
        "score = lambda n: (lambda m: m + 1)(n)", "score = lambda n: (lambda m: m + 2)(n)",
    ),
    "a function inside": (
        "def score(n):\n    def f(m): return g(m)\n    return f(n)\ndef g(m): return m",
        "def score(n):\n    def f(m): return g(m)\n    return f(n)\ndef g(m): return -m",
    ),
    "what a comprehension reads": (
        "N = 1\ndef score(rows): return [n + N for n in rows]", "N = 2\ndef score(rows): return [n + N for n in rows]",
    ),
    "what a function inside changes": (
        "def made():\n    n = 1\n    def f(m):\n        nonlocal n\n        n += g(m)\n        return n\n    return f\n"
        "def g(m): return m\nscore = made()",
        "def made():\n    n = 1\n    def f(m):\n        nonlocal n\n        n += g(m)\n        return n\n    return f\n"
        "def g(m): return -m\nscore = made()",
    ),
    "int": ("N = 1\ndef score(n): return N", "N = 2\ndef score(n): return N"),
    "int for a truth": ("N = 1\ndef score(n): return N", "N = True\ndef score(n): return N"),
    "float": ("N = 0.0\ndef score(n): return N", "N = -0.0\ndef score(n): return N"),
    "str": ("N = 'a'\ndef score(n): return N", "N = 'b'\ndef score(n): return N"),
    "huge int": ("N = 10 ** 6000\ndef score(n): return N", "N = 10 ** 6000 + 1\ndef score(n): return N"),
    "tuple": ("N = (1, (2, 3))\ndef score(n): return N", "N = (1, (2, 4))\ndef score(n): return N"),
    "frozen dict": (
        "from types import MappingProxyType as M\nN = M({'a': 1})\ndef score(n): return N",
        "from types import MappingProxyType as M\nN = M({'a': 2})\ndef score(n): return N",
    ),
    "set": ("N = {'a', 'b'}\ndef score(n): return N", "N = {'a', 'c'}\ndef score(n): return N"),
    "list that is changed": (
        "N = [1]\nN.append(2)\ndef score(n): return n in N", "N = [1]\nN.append(3)\ndef score(n): return n in N",
    ),
    "list in itself": (
        "N = [1]\nN.append(N)\ndef score(n): return N", "N = [2]\nN.append(N)\ndef score(n): return N",
    ),
    "default dict": (
        "from collections import defaultdict as D\nN = D(list, {'a': [1]})\ndef score(n): return N",
        "from collections import defaultdict as D\nN = D(list, {'a': [2]})\ndef score(n): return N",
    ),
    "regular expression": (
        "import re\nN = re.compile('a')\ndef score(n): return N.match(n)",
        "import re\nN = re.compile('b')\ndef score(n): return N.match(n)",
    ),
    "time": (
        "from datetime import datetime as D\nN = D(2020, 1, 1)\ndef score(n): return N",
        "from datetime import datetime as D\nN = D(2020, 1, 2)\ndef score(n): return N",
    ),
    "array": (
        "import numpy as np\nN = np.array([1, 2])\ndef score(n): return N",
        "import numpy as np\nN = np.array([1, 3])\ndef score(n): return N",
    ),
    "a view of an array": (
        "import numpy as np\nN = np.arange(12).reshape(3, 4)[:, 1]\ndef score(n): return N",
        "import numpy as np\nN = np.arange(12).reshape(3, 4)[:, 2]\ndef score(n): return N",
    ),
    "array of objects": (
        "import numpy as np\nN = np.array([1, 'a'], object)\ndef score(n): return N",
        "import numpy as np\nN = np.array([1, 'b'], object)\ndef score(n): return N",
    ),
    "array of times": (
        "import numpy as np\nN = np.array(['2020-01-01'], 'M8[D]')\ndef score(n): return N",
        "import numpy as np\nN = np.array(['2020-01-01'], 'M8[s]')\ndef score(n): return N",
    ),
    "scalar of an array": (
        "import numpy as np\nN = np.int64(1)\ndef score(n): return N",
        "import numpy as np\nN = np.int32(1)\ndef score(n): return N",
    ),
    "expression": (
        "import polars as pl\nN = pl.col('a') > 1\ndef score(n): return n.filter(N)",
        "import polars as pl\nN = pl.col('a') > 2\ndef score(n): return n.filter(N)",
    ),
    "long expression": (
        "import polars as pl\nN = pl.col('a').is_in([*range(98), 7, 5])\ndef score(n): return n.filter(N)",
        "import polars as pl\nN = pl.col('a').is_in([*range(98), 8, 5])\ndef score(n): return n.filter(N)",
    ),
    "series": (
        "import polars as pl\nN = pl.Series([1, 2])\ndef score(n): return N",
        "import polars as pl\nN = pl.Series([1, 3])\ndef score(n): return N",
    ),
    "frame": (
        "import polars as pl\nN = pl.DataFrame({'a': [1]})\ndef score(n): return N",
        "import polars as pl\nN = pl.DataFrame({'b': [1]})\ndef score(n): return N",
    ),
    "Arrow scalar": (
        "import pyarrow as pa\nN = pa.scalar(1)\ndef score(n): return N",
        "import pyarrow as pa\nN = pa.scalar(2)\ndef score(n): return N",
    ),
    "Arrow table": (
        "import pyarrow as pa\nN = pa.table({'a': [1]})\ndef score(n): return N",
        "import pyarrow as pa\nN = pa.table({'a': [2]})\ndef score(n): return N",
    ),
    "pandas frame": (
        "import pandas as pd\nN = pd.DataFrame({'a': [1]})\ndef score(n): return N",
        "import pandas as pd\nN = pd.DataFrame({'a': [2]})\ndef score(n): return N",
    ),
    "an object beside a lock": (
        "import threading\nclass C:\n    def __init__(self): self.n, self.lock = 1, threading.Lock()\n"
        "N = C()\ndef score(n): return N.n",
        "import threading\nclass C:\n    def __init__(self): self.n, self.lock = 2, threading.Lock()\n"
        "N = C()\ndef score(n): return N.n",
    ),
    "what Numba compiles": (
        "import numba\n@numba.njit\ndef f(n): return n\ndef score(n): return f(n)",
        "import numba\n@numba.njit\ndef f(n): return -n\ndef score(n): return f(n)",
    ),
    "what a name stands for": (
        "def one(n): return n\ndef two(n): return -n\nf = one\ndef score(n): return f(n)",
        "def one(n): return n\ndef two(n): return -n\nf = two\ndef score(n): return f(n)",
    ),
    "a name that was built in": (
        "def score(n): return len(n)", "def len(n): return 1\ndef score(n): return len(n)",
    ),
    "which library": (
        "from math import floor as f\ndef score(n): return f(n)", "from math import ceil as f\n"
        "def score(n): return f(n)",
    ),
    "a name that two functions read": (
        "N = 1\ndef f(n): return n > N\ndef score(n): return f(n) or n == N",
        "N = 2\ndef f(n): return n > N\ndef score(n): return f(n) or n == N",
    ),
}  # fmt: skip

BODY = "def f(n): return n\ndef score(n):\n    return f(n) + N\nN = 1\n"
WITH_CLASS = "class C:\n    least = 1\n    def keep(self, n): return n\nc = C()\ndef score(n): return c.keep(n)\n"

SAME: dict[str, tuple[Files, Files]] = {
    "comments": (BODY, f"# first\n{BODY}".replace("f(n) + N", "(f(n)  # so\n        + N)")),
    "docstrings": (
        BODY, "def f(n):\n    'Gives it.'\n    return n\ndef score(n):\n    'Scores.'\n    return f(n) + N\nN = 1\n",
    ),
    "docstrings of classes": (WITH_CLASS, WITH_CLASS.replace("    least", "    'About.'\n\n    least")),
    "lines": (BODY, f"\n\n\n{BODY}"),
    "lines of classes": (WITH_CLASS, f"\n\n\nimport os\n{WITH_CLASS}"),
    "other globals": (BODY, f"{BODY}\nM = 3\ndef other(n): return M\nclass C: pass\n"),
    "other globals of a module": (
        {"app": "import rules\ndef score(n): return rules.f(n)", "rules": "def f(n): return n"},
        {"app": "import rules\ndef score(n): return rules.f(n)",
         "rules": "N = 1\ndef f(n): return n\ndef g(n): return n"},
    ),
    "an argument that is called as a global": (
        "N = 1\ndef score(N): return N + 1", "N = 2\ndef score(N): return N + 1",
    ),
    "an attribute that is called as a global": (
        "n = 1\ndef score(row): return row.n", "n = 2\ndef score(row): return row.n",
    ),
    "the order of definitions": (BODY, "N = 1\ndef score(n): return f(n) + N\ndef f(n): return n\n"),
    "the order of functions that call each other": (
        "def a(n): return n and b(n)\ndef b(n): return n and score(n)\ndef score(n): return n and a(n)",
        "def score(n): return n and a(n)\ndef b(n): return n and score(n)\ndef a(n): return n and b(n)",
    ),
    "a helper in another module": (
        BODY, {"app": "from rules import f, N\ndef score(n): return f(n) + N", "rules": "N = 1\ndef f(n): return n"},
    ),
    "quotes and numbers": (
        "def score(n): return n['a'] + 1000", 'def score(n):\n    return n["a"] + 1_000',
    ),
    "a lock": (
        "import threading\nL = threading.Lock()\ndef score(n):\n    with L: return n",
        "import threading\nL = threading.Lock()\ndef score(n):\n    with L: return n",
    ),
    "a logger": (
        "import logging\nL = logging.getLogger('a')\ndef score(n): L.info(n)",
        "import logging\nL = logging.getLogger('b')\ndef score(n): L.info(n)",
    ),
    "what is stated": (
        "def score(n): return n\nscore.__riverrun_identity__ = '1'",
        "def score(n): return -n\nscore.__riverrun_identity__ = '1'",
    ),
    "what is stated of a value": (
        "class Model:\n    __riverrun_identity__ = 'v1'\n    def __init__(self, n): self.n = n\n"
        "M = Model(1)\ndef score(n): return M.n",
        "class Model:\n    __riverrun_identity__ = 'v1'\n    def __init__(self, n): self.n = n\n"
        "M = Model(2)\ndef score(n): return M.n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_a_function_is_another_with(what: str, tmp_path: Path) -> None:
    one, other = CHANGED[what]
    assert word(tmp_path, one) == word(tmp_path, one)
    assert word(tmp_path, one) != word(tmp_path, other)


@pytest.mark.parametrize("what", SAME)
def test_a_function_is_the_same_in_spite_of(what: str, tmp_path: Path) -> None:
    one, other = SAME[what]
    assert word(tmp_path, one) == word(tmp_path, other)


def test_what_is_stated_counts(tmp_path: Path) -> None:
    stated = "def score(n): return n\nscore.__riverrun_identity__ = {!r}"
    assert word(tmp_path, stated.format("1")) != word(tmp_path, stated.format("2"))
    model = (
        "class Model:\n    def __init__(self, n): self.n = n\n"
        "    def __riverrun_identity__(self): return f'model {{self.n}}'\n"
        "M = Model({})\nM.cache = {}\ndef score(n): return M.n"
    )
    assert word(tmp_path, model.format(1, 1)) == word(tmp_path, model.format(1, 2))
    assert word(tmp_path, model.format(1, 1)) != word(tmp_path, model.format(2, 1))


def test_a_class_made_of_one_that_is_stated_counts_by_its_own_code(tmp_path: Path) -> None:
    text = (
        "class Base:\n    __riverrun_identity__ = '1'\nclass C(Base):\n    def f(self, n): return {}\n"
        "c = C()\ndef score(n): return c.f(n)"
    )
    assert word(tmp_path, text.format("n")) != word(tmp_path, text.format("-n"))


def program_text(calls: dict[int, list[int]], numbers: dict[int, int], order: list[int]) -> Files:
    """Functions in two modules that call each other as they are said to."""
    texts = {"app": "import rest\n", "rest": "import app\n"}
    for at in order:
        here = "app" if at % 2 else "rest"
        others = "".join(
            f" + {f'f{to}' if to % 2 == at % 2 else ('rest' if at % 2 else 'app') + f'.f{to}'}(n - 1)"
            for to in calls[at]
        )
        texts[here] += f"def f{at}(n):\n    return 0 if n < 0 else {numbers[at]}{others}\n"
    return texts


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(30, soak=600))
def test_who_reaches_what_changed_changes_and_nobody_else(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    size = chance.randrange(2, 12)
    calls = {
        at: chance.sample(range(size), chance.choice([0, 1, 1, 2, min(3, size)]))
        for at in range(size)
    }
    numbers = {at: chance.randrange(3) for at in range(size)}
    reached = {at: {at} for at in range(size)}
    for _ in range(size):
        for at in range(size):
            reached[at] = reached[at].union(*(reached[to] for to in calls[at]))
    changed = chance.randrange(size)

    def words(numbers: dict[int, int]) -> dict[int, str]:
        order = chance.sample(range(size), size)
        with modules(tmp_path / f"{next(_folders)}", program_text(calls, numbers, order)) as find:
            names = {at: f"{'app' if at % 2 else 'rest'}:f{at}" for at in range(size)}
            walk = Walk()  # all of them by one walk, in any order, or each by itself
            if chance.random() < 0.5:
                return {
                    at: walk.code_of(find(names[at])) for at in chance.sample(range(size), size)
                }
            return {at: code_of(find(names[at])) for at in range(size)}

    before, again, after = words(numbers), words(numbers), words({**numbers, changed: 7})
    assert before == again, (seed, calls)
    others = {at for at in range(size) if before[at] != after[at]}
    assert others == {at for at in range(size) if changed in reached[at]}, (seed, calls, changed)


PROGRAM = """
import enum, functools
from dataclasses import dataclass

class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2

@dataclass(frozen=True)
class Rules:
    least: int = 3
    names: tuple[str, ...] = ("a", "b")

    def allows(self, n: int) -> bool:
        '''Whether it does.'''
        return n > self.least and f"{n!r:>{self.least}} is {'good'}" != "{}"

RULES, KNOWN = Rules(), frozenset("abcdefgh")

def loud(function):
    @functools.wraps(function)
    def called(*args, **options):
        return function(*args, **options)
    return called

@loud
def normalise(n, *, by=lambda m: m + 1, most=10**30):
    match n:
        case {"n": int(m), **rest} if m:
            return by(m)
        case [first, *_]:
            return first
    try:
        return [k for k in range(n) if (last := k) in KNOWN and RULES.allows(k)]
    except* ValueError:
        n = None

def ping(n): return pong(n - 1) if n else Size.SMALL
def pong(n): return ping(n - 1) if n else -0.0

def score(row):
    return [normalise(row), ping(3), *(x async for x in row)] if row else b"\\x00" + "é".encode()
"""

WORD_OF_PROGRAM = "d8654697544a"

ALONE = """
import sys, types
for name in ("riverrun", "riverrun.plan"):  # without what the package imports
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = module
sys.path[:0] = [sys.argv[2]]
from riverrun.plan.identity import code_of
import app
print(code_of(app.score))
"""


def interpreters() -> list[str]:
    """Versions of Python that this machine has, this one first."""
    places = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places += [str(each) for each in sorted(installed.glob("3.1[1-9].*/bin/python"))]
    places = [each for each in places if each and _is_there(each)]
    return list(dict.fromkeys([sys.executable, *map(str, places)]))


def _is_there(python: str) -> bool:
    """Whether it is an interpreter, not only a name for one."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def test_the_word_is_the_same_in_every_version_of_python_and_in_every_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(PROGRAM.replace("async for", "for"))
    package = str(Path(identity.__file__).parents[2])
    for python in interpreters():
        for seed in ("1", "2"):
            ran = subprocess.run(
                [python, "-c", ALONE, package, str(tmp_path)],
                env={"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (ran.stdout.strip(), python) == (WORD_OF_PROGRAM, python), ran.stderr


def looked_up(code: CodeType) -> set[str]:
    """The names that a function, and those inside it, look up outside, by what the compiler made of it."""
    return {path[0] for path in bytecode_of(code).reads}


@pytest.mark.parametrize("module", ["function_source", "identity", "diff", "plan", "operator"])
def test_names_are_read_as_the_compiler_reads_them(module: str) -> None:
    file = Path(function_source.__file__).with_name(f"{module}.py")
    text = file.read_text()
    parsed = function_source._file(text, __future__.annotations.compiler_flag)
    several = 0
    for codes in parsed.codes.values():
        for code in codes:
            node = parsed.definition(code)
            if node is None:
                continue
            said = parsed.source(node)
            names = {path[0] for path in said.reads if path[0] not in said.imports}
            names -= {*code.co_freevars}
            unsaid = names ^ (looked_up(code) - said.imports.keys())
            assert not unsaid, (code.co_qualname, unsaid)
            several += 1
    assert several > 5


def test_a_source_that_is_not_that_of_the_code_does_not_count(tmp_path: Path) -> None:
    """A file was edited after it was imported: what runs is what was imported."""
    text = "def score(row):\n    return row + {}\n"
    with modules(tmp_path / "one", text.format(1)) as find:
        score = find("app:score")
        before = code_of(score)
        (tmp_path / "one" / "app.py").write_text("# longer\n" + text.format(2))
        linecache.checkcache()
        assert source_of(score.__code__, score.__globals__) is None
        old = code_of(score)
        sys.modules.pop("app")
        importlib.invalidate_caches()
        assert len({before, old, code_of(find("app:score"))}) == 3


def test_a_function_without_a_source_counts_by_its_bytecode_and_what_it_reads() -> None:
    def made(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "nowhere"}
        exec(text, names)  # as in an interactive session before Python 3.13
        return names["score"]

    text = "N = 1\ndef f(n): return n\ndef score(n): return f(n) + N"
    assert code_of(made(text)) == code_of(made(text))
    assert source_of(made(text).__code__, {}) is None
    for old, new in (("return n\n", "return -n\n"), ("N = 1", "N = 2"), ("+ N", "- N")):
        assert code_of(made(text)) != code_of(made(text.replace(old, new)))


def test_the_cells_of_a_notebook_have_sources() -> None:
    def run(cell: str, name: str, names: dict[str, Any]) -> None:
        """As IPython does it."""
        linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
        exec(compile(cell, name, "exec"), names)

    def word_of(*cells: str) -> str:
        names: dict[str, Any] = {"__name__": "__main__"}
        for at, cell in enumerate(cells):
            run(cell, f"<ipython-input-{at}-{next(_folders)}>", names)
        score = names["score"]
        assert source_of(score.__code__, score.__globals__) is not None
        return code_of(score)

    one = "def normalise(n):\n    return n\n", "def score(n):\n    return normalise(n)\n"
    assert word_of(*one) == word_of(*one) == word_of(one[0] + "\n" + one[1]) == word_of(*one[::-1])
    assert word_of(*one) != word_of(one[0].replace("return n", "return -n"), one[1])


def test_a_function_stays_the_same_when_its_file_moves(tmp_path: Path) -> None:
    text = "class C:\n    pass\ndef f(n): return n\ndef score(n): return f(n), C, C()\n"
    assert word(tmp_path, {"app": text}) == word(tmp_path, {"shop.other": text}, "shop.other:score")


def installed(folder: Path, text: str) -> None:
    place = folder / "lib" / "site-packages" / "acme"
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(text)


def test_installed_packages_count_by_name_unless_the_function_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = []
    for version in (1, 2):
        folder = tmp_path / f"environment{version}"
        installed(folder, f"def rate(n): return n * {version}\ndef score(n): return rate(n)\n")
        monkeypatch.syspath_prepend(str(folder / "lib" / "site-packages"))
        with modules(folder / "own", "import acme\ndef score(n): return acme.rate(n)") as find:
            words.append((code_of(find("app:score")), code_of(find("acme:score"))))
        sys.modules.pop("acme")
    (mine, theirs), (mine_now, theirs_now) = words
    assert mine == mine_now
    assert theirs != theirs_now


def test_a_function_for_which_too_much_counts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MOST", 100)
    text = (
        "class C: pass\nMODEL = [C() for _ in range(100)]\ndef f(n): return MODEL\n"
        "def score(n): return f(n)\n"
    )
    with pytest.raises(PlanError, match="the global MODEL of f") as refused:
        word(tmp_path, text)
    assert refused.value.code == "plan.identity"
    assert "__riverrun_identity__" in str(refused.value)
    assert word(tmp_path, f"{text}f.__riverrun_identity__ = '1'\n")


def test_long_chains_of_values_are_no_matter(tmp_path: Path) -> None:
    text = "N = []\nfor n in range(5000): N = [N, len]\ndef score(n): return N"
    assert word(tmp_path, text) == word(tmp_path, text)


def test_what_is_large_counts_by_a_digest(tmp_path: Path) -> None:
    text = "N = [(n, str(n)) for n in range(300_000)]\nN[7] = {}\ndef score(n): return N"
    assert word(tmp_path, text.format(1)) != word(tmp_path, text.format(2))


def test_one_walk_looks_at_what_many_functions_share_once(tmp_path: Path) -> None:
    helpers = "".join(f"def h{n}(m): return h{n + 1}(m)\n" for n in range(200))
    text = f"{helpers}def h200(m): return m\nALL = [lambda m, n=n: h0(m) + n for n in range(300)]\n"
    with modules(tmp_path / "many", text) as find:
        walk, functions = Walk(), find("app:ALL")
        assert len({walk.code_of(each) for each in functions}) == len(functions)
        assert sum(len(graph.entries) for graph in walk._graphs.values()) < 5 * 300 + 5 * 200


def test_threads_do_not_mix_what_they_look_at(tmp_path: Path) -> None:
    with modules(tmp_path / "threads", SAME["comments"][0]) as find:
        score, words = find("app:score"), set()
        threads = [
            threading.Thread(target=lambda: words.add(code_of(score)), daemon=True)
            for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(words) == 1


EXPRESSIONS = {
    "map_elements": "rows.select(m=pl.col('n').map_elements(f, return_dtype=pl.Int64))",
    "a lambda": "rows.select(m=pl.col('n').map_elements(lambda n: f(n), return_dtype=pl.Int64))",
    "map_batches": "rows.select(m=pl.col('n').map_batches(f, pl.Int64, is_elementwise=True))",
    "a filter": "rows.filter(pl.col('n').map_elements(f, return_dtype=pl.Int64) > 1)",
    "elements of lists": (
        "rows.select(m=pl.concat_list('n').list.eval(pl.element().map_elements(f, return_dtype=pl.Int64)))"
    ),
    "a group": "rows.group_by('n').agg(m=pl.col('n').map_elements(f, return_dtype=pl.Int64).sum())",
    "batches of a group": "rows.group_by('n').agg(m=pl.col('n').map_batches(f, pl.Int64).sum())",
}


@pytest.mark.parametrize("what", EXPRESSIONS)
@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_functions_in_expressions_count(what: str, tmp_path: Path) -> None:
    text = (
        "import polars as pl\nimport riverrun as rr\nM = {}\ndef g(n): return n * {}\n"
        "def f(n): return g(n) + M\ndef fingerprint():\n    flow = rr.Dataflow('x')\n"
        f"    rows = flow.input('rows', {{{{'n': pl.Int64}}}})\n    flow.output('o', {EXPRESSIONS[what]})\n"
        "    return flow.plan.fingerprint\n"
    )

    def fingerprint(*numbers: int) -> Any:
        with modules(tmp_path / f"{next(_folders)}", text.format(*numbers)) as find:
            return find("app:fingerprint")()

    assert fingerprint(1, 1) == fingerprint(1, 1)
    assert fingerprint(1, 1) != fingerprint(1, 2)
    assert fingerprint(1, 1) != fingerprint(2, 1)


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_other_threads_pickle_while_an_expression_is_written() -> None:
    expression = pl.col("n").map_elements(lambda n: n, return_dtype=pl.Int64)
    stop, written = threading.Event(), []

    def pickles() -> None:
        while not stop.is_set():
            written.append(sys.modules["pickle"].dumps([1, 2]))

    thread = threading.Thread(target=pickles, daemon=True)
    thread.start()
    words = {code_of(expression) for _ in range(200)}
    stop.set()
    thread.join()
    assert len(words) == 1
    assert set(written) == {pickle.dumps([1, 2])}
    assert sys.modules["pickle"] is pickle
