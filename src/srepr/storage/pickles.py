"""Read pickles as data: the opcodes are interpreted here, and no name in them is ever imported or called.

A pickle is a program for a stack machine. Its instructions build lists, dicts and numbers, which is harmless, and call
functions by name (REDUCE, NEWOBJ, BUILD, ...), which lets a malicious file run code. This machine calls only functions
that its caller registers by name. Any other call returns an inert `Foreign`.

A short program can also ask for much work: memoised objects are reused at the price of two bytes. Every opcode costs a
unit of work, a call 16 and the lengths of its arguments, and a key an additional unit for 64 characters. The budget is
proportional to the size of the program, and limited.
"""

from __future__ import annotations

import pickletools
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_WORK = 5_000_000
"""Units of work in one file; a tensor takes about 70."""
LONGEST_NAME = 255
MOST_ARGUMENTS = 16
SIZED = (list, tuple, dict, str, bytes, bytearray)

# module:name of what checkpoints usually hold besides tensors. Like all others they are not called: the list only
# decides which names are worth a line to the user.
USUAL = re.compile(
    r"builtins:(bool|bytearray|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str|tuple)"
    r"|collections:(ChainMap|Counter|OrderedDict|defaultdict|deque)"
    r"|torch:(device|dtype|Generator|Size|Tensor|[A-Z]\w*Storage|bool|b?float\d+\w*|q?u?int\d+|complex\d+)"
    r"|torch\._utils:_rebuild_\w+|torch\._tensor:_rebuild_from_type_v2|torch\.serialization:_get_layout"
    r"|torch\.storage:(Typed|Untyped)Storage|torch\.nn\.functional:[a-z]\w*"
    r"|torch\.(nn|optim)(\.\w+)+:[A-Z]\w*|(torchvision|timm)(\.\w+)+:[A-Z]\w*"
    r"|numpy:(ndarray|dtype|bool_?|(str|bytes)_|u?int\d+|float\d+|complex\d+)|numpy\.dtypes:\w+DType"
    r"|numpy\._?core\.multiarray:(_reconstruct|scalar)|numpy\.random(\.\w+)*:\w+"
    r"|_codecs:encode|copyreg:_reconstructor|functools:partial|argparse:Namespace|types:SimpleNamespace|typing:\w+"
    r"|pathlib:(Pure)?(Posix|Windows)?Path|datetime:(date|datetime|time|timedelta|timezone)|decimal:Decimal|uuid:UUID"
    r"|logging:(Logger|RootLogger|getLogger)|random:Random|re:_compile"
    r"|(omegaconf|ml_collections|pytorch_lightning|lightning|lightning_fabric)(\.\w+)*:[A-Z]\w*"
    r"|yacs\.config:CfgNode|easydict:EasyDict|addict(\.addict)?:Dict|munch:Munch|box(\.box)?:Box"
    r"|(mmcv\.utils|mmengine\.config)(\.config)?:Config(Dict)?|parse_config:ConfigParser"
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A name in a pickle or, if `made`, the result of calling it."""

    name: str
    made: bool = False


def work_for(size: int) -> int:
    """Budget for programs of so many bytes: the densest that pickle writes need a quarter of it.

    >>> work_for(10_000), work_for(10**9)
    (50000, 5000000)
    """
    return min(4 * size + 10_000, MOST_WORK)


@dataclass
class Machine:
    """Reads pickles. `rebuild` maps names that may be called to functions; `persistent` resolves storages.

    >>> import collections, io, pickle
    >>> file = io.BytesIO(pickle.dumps({"epoch": 3, "args": collections.Counter("aab")}))
    >>> machine = Machine(rebuild={}, persistent=lambda identity: None)
    >>> machine.read(file)
    {'epoch': 3, 'args': Foreign(name='collections.Counter', made=True)}
    >>> machine.foreign, machine.unusual
    (['collections.Counter'], [])
    """

    rebuild: Mapping[str, Callable[..., Any]]
    persistent: Callable[[Any], Any]
    work: int = MOST_WORK
    """Units of work that are left."""
    names: dict[str, Foreign] = field(default_factory=dict)
    """Every name in the pickle, in order."""
    unusual: list[str] = field(default_factory=list)
    """Those among them that checkpoints do not usually hold."""

    @property
    def foreign(self) -> list[str]:
        """Names in the pickle that were neither called nor built."""
        return [name for name in self.names if name not in self.rebuild]

    def spend(self, units: int) -> None:
        """Take units of work from the budget; a ValueError if it is used up."""
        self.work -= units
        if self.work < 0:
            raise ValueError("reading it takes more work than its size explains")

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
            self.spend(1)
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
                    if not 0 <= value < 2**32:
                        raise ValueError("a number of its memo is out of range")
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
                    stack.append(self.as_dict(zip(items[::2], items[1::2], strict=True)))
                case "SETITEM":
                    content, key = stack.pop(), stack.pop()
                    self.update(stack[-1], [key, content])
                case "SETITEMS":
                    items = since_mark()
                    self.update(stack[-1], items)
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
        """Stand-in for a name."""
        if not isinstance(module, str) or not isinstance(name, str) or len(module) + len(name) > LONGEST_NAME:
            raise ValueError("a name in it is not a short string")
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))  # Python 2
        full = f"{module}.{name}"
        if full not in self.names:
            self.names[full] = Foreign(full)
            if not USUAL.fullmatch(f"{module}:{name}"):
                self.unusual.append(full)
        return self.names[full]

    def call(self, function: Any, arguments: Any) -> Any:
        """Result of a call: a real value for names in `rebuild`, an inert stand-in for all others."""
        if not isinstance(function, Foreign):
            raise ValueError(f"it calls {type(function).__name__} instead of a name")
        if function.name not in self.rebuild or function.made:
            return Foreign(function.name, made=True)
        if not isinstance(arguments, tuple | list) or len(arguments) > MOST_ARGUMENTS:
            raise ValueError(f"it calls {function.name} with arguments that are not its own")
        self.spend(16 + sum(len(value) for value in arguments if isinstance(value, SIZED)))
        return self.rebuild[function.name](*arguments)

    def update(self, target: Any, items: list[Any]) -> None:
        """Set alternating keys and values in a dict; a stand-in ignores them."""
        if isinstance(target, dict):
            target.update(self.as_dict(zip(items[::2], items[1::2], strict=True)))

    def as_dict(self, pairs: Iterable[Any] = ()) -> dict[Any, Any]:
        """A dict of the pairs whose key is a string, bytes, None or an integer of 32 bits.

        Others are left out: hashing deep tuples could exhaust the C stack, and numbers that collide in the hash table
        take quadratic time. The hashes of strings are random.
        """
        found = {}
        for key, value in pairs:
            if isinstance(key, str | bytes):
                self.spend(len(key) // 64)  # equal keys are compared
            elif key is not None and not (isinstance(key, int) and -(2**31) <= key < 2**31):
                continue
            found[key] = value
        return found


def extend(target: Any, items: list[Any]) -> None:
    """Extend a list; a stand-in ignores the items."""
    if isinstance(target, list):
        target.extend(items)
