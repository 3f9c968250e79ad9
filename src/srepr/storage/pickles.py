"""Read pickles as data: the opcodes are interpreted here, and no name in them is ever imported or called.

A pickle is a program for a stack machine. Its instructions build lists, dicts and numbers, which is harmless, and call
functions by name (REDUCE, NEWOBJ, BUILD, ...), which lets a malicious file run code. This machine calls only functions
that its caller registers by name. Any other call returns an inert `Foreign`.
"""

from __future__ import annotations

import pickletools
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HARMLESS_BUILTINS = re.compile(
    r"builtins\.(bool|bytearray|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str|tuple)"
)
# Only an attack names these in a checkpoint. None would be called: the list only decides what is reported.
DANGEROUS = re.compile(
    r"(os|posix|nt|posixpath|ntpath|sys|subprocess|importlib|runpy|pty|socket|shutil|_?operator|_?functools|ctypes|code"
    r"|codeop|marshal|_?pickle|pydoc|webbrowser|multiprocessing|threading|_thread|signal|asyncio|concurrent|http"
    r"|urllib|ftplib|smtplib|telnetlib|xmlrpc|ssl|tempfile|_?io|zipimport|imp|pip|pkgutil|timeit|pdb|bdb|cProfile|profile"
    r"|trace|platform|gc|inspect|site|builtins"
    r"|types\.(FunctionType|CodeType|MethodType|LambdaType)"
    r"|torch\.(load|hub|jit|ops|package|serialization|storage\._load_from_bytes|distributed|testing|_inductor|_dynamo"
    r"|utils\.(cpp_extension|model_zoo))"
    r"|numpy\.(load|f2py|testing|distutils))(\..*)?",
    re.DOTALL,
)


class Malicious(Exception):  # noqa: N818  (what the file is, not an error of the program)
    """The pickle names a function that does not belong in a checkpoint; the argument is that name."""


@dataclass(frozen=True)
class Foreign:
    """A name in a pickle or, if `made`, the result of calling it."""

    name: str
    made: bool = False


@dataclass
class Machine:
    """Reads pickles. `rebuild` maps names that may be called to functions; `persistent` resolves storages.

    >>> import collections, io, pickle
    >>> file = io.BytesIO(pickle.dumps({"epoch": 3, "args": collections.Counter("aab")}))
    >>> machine = Machine(rebuild={}, persistent=lambda identity: None)
    >>> machine.read(file)
    {'epoch': 3, 'args': Foreign(name='collections.Counter', made=True)}
    >>> machine.foreign
    ['collections.Counter']
    """

    rebuild: Mapping[str, Callable[..., Any]]
    persistent: Callable[[Any], Any]
    foreign: list[str] = field(default_factory=list)
    """Names that were called in the pickle but not executed, in order."""

    def read(self, file: Any) -> Any:  # long: one case for each opcode
        """Value of the next pickle in a file-like object. A broken pickle may raise any exception."""
        stack: list[Any] = []
        marked: list[list[Any]] = []  # the stacks below each MARK
        memo: dict[int, Any] = {}

        def since_mark() -> list[Any]:
            nonlocal stack
            items, stack = stack, marked.pop()
            return items

        value: Any
        for opcode, value, _ in pickletools.genops(file):
            match opcode.name:
                case "STOP":
                    return stack.pop()
                case "PROTO" | "FRAME":
                    pass
                case "MARK":
                    marked.append(stack)
                    stack = []
                case "POP":
                    stack.pop() if stack else since_mark()
                case "POP_MARK":
                    since_mark()
                case "DUP":
                    stack.append(stack[-1])
                case "PUT" | "BINPUT" | "LONG_BINPUT":
                    memo[value] = stack[-1]
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "GET" | "BINGET" | "LONG_BINGET":
                    stack.append(memo[value])
                case "NONE" | "NEWTRUE" | "NEWFALSE":
                    stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    size = int(opcode.name[-1])
                    stack[-size:] = [tuple(stack[-size:])]
                case "TUPLE":
                    items = since_mark()
                    stack.append(tuple(items))
                case "EMPTY_LIST":
                    stack.append([])
                case "LIST":
                    items = since_mark()
                    stack.append(items)
                case "APPEND":
                    extend(stack[-2], [stack.pop()])
                case "APPENDS":
                    items = since_mark()
                    extend(stack[-1], items)
                case "EMPTY_DICT":
                    stack.append({})
                case "DICT":
                    items = since_mark()
                    stack.append(as_dict(zip(items[::2], items[1::2], strict=True)))
                case "SETITEM":
                    content, key = stack.pop(), stack.pop()
                    update(stack[-1], [key, content])
                case "SETITEMS":
                    items = since_mark()
                    update(stack[-1], items)
                case "EMPTY_SET":
                    stack.append(Foreign("builtins.set", made=True))
                case "ADDITEMS":
                    since_mark()
                case "FROZENSET":
                    since_mark()
                    stack.append(Foreign("builtins.frozenset", made=True))
                case "GLOBAL":
                    stack.append(self.named(*value.split(" ", 1)))
                case "STACK_GLOBAL":
                    name, module = stack.pop(), stack.pop()
                    stack.append(self.named(module, name))
                case "REDUCE" | "NEWOBJ":
                    arguments, function = stack.pop(), stack.pop()
                    stack.append(self.call(function, arguments))
                case "NEWOBJ_EX":
                    _keywords, arguments, function = stack.pop(), stack.pop(), stack.pop()
                    stack.append(self.call(function, arguments))
                case "INST":
                    items = since_mark()
                    stack.append(self.call(self.named(*value.split(" ", 1)), items))
                case "OBJ":
                    function, *items = since_mark()
                    stack.append(self.call(function, items))
                case "BUILD":
                    stack.pop()  # discard the object's state
                case "PERSID" | "BINPERSID":
                    stack.append(self.persistent(value if opcode.name == "PERSID" else stack.pop()))
                case "EXT1" | "EXT2" | "EXT4" | "NEXT_BUFFER" | "READONLY_BUFFER":
                    raise ValueError(f"the opcode {opcode.name} does not belong in a checkpoint")
                case _:
                    stack.append(value)  # a number, a string or bytes
        raise ValueError("it has no end")  # genops raises this itself; for the type checker

    def named(self, module: Any, name: Any) -> Foreign:
        """Stand-in for a name; raises Malicious for a dangerous name."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a name in it is not a string")
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))  # Python 2
        full = f"{module}.{name}"
        if DANGEROUS.fullmatch(full) and not HARMLESS_BUILTINS.fullmatch(full):
            raise Malicious(full)
        return Foreign(full)

    def call(self, function: Any, arguments: Any) -> Any:
        """Result of a call: a real value for names in `rebuild`, an inert stand-in for all others."""
        if not isinstance(function, Foreign):
            raise ValueError(f"it calls {type(function).__name__} instead of a name")
        if function.name in self.rebuild and not function.made:
            return self.rebuild[function.name](*arguments)
        if function.name not in self.foreign:
            self.foreign.append(function.name)
        return Foreign(function.name, made=True)


def extend(target: Any, items: list[Any]) -> None:
    """Extend a list; a stand-in ignores the items."""
    if isinstance(target, list):
        target.extend(items)


def update(target: Any, items: list[Any]) -> None:
    """Set alternating keys and values in a dict; a stand-in ignores them."""
    if isinstance(target, dict):
        target.update(as_dict(zip(items[::2], items[1::2], strict=True)))


def as_dict(pairs: Any = ()) -> dict[Any, Any]:
    """A dict of the pairs whose key is a string, a number or None: hashing deep tuples could exhaust the C stack."""
    return {key: value for key, value in pairs if key is None or isinstance(key, str | bytes | int | float)}
