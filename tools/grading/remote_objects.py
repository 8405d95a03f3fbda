"""Remote objects: a check and the answers that it calls run in two processes.

There is a `Peer` on each side. An object that one side lends becomes a proxy on the other: a
function, a class or a layer whose calls go back to the lender. Values travel both ways as
serialization.py writes them. Gradients flow through calls: a backward pass that reaches a call
requests its part from the other side. So a check works the same with local answers and proxies.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import linecache
import random
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from checks.engine.answer import source
from checks.engine.call_tracer import TooLong
from tools.grading import remote_modes
from tools.grading.serialization import (
    ProtocolError,
    Reader,
    Unserializable,
    Writer,
    name_of_shared,
    shared_class,
)

KEPT_GRAPHS = 200  # calls with a possible backward pass
MAX_TEXT = 2000  # characters of an error
OWN_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
NUMBER = "_remote_number"
KIND_OF_PARAMETER = type(inspect.Parameter.POSITIONAL_ONLY)
_files = itertools.count(1)
# Copied before students' code may replace them. torch.manual_seed also formats the stack.
_seed = torch.default_generator.manual_seed
_grad, _enabled = torch.autograd.grad, torch.set_grad_enabled
_is_enabled, _no_grad = torch.is_grad_enabled, torch.no_grad
_fresh = set(vars(nn.Module())) - {"training", *OWN_TABLES}


class Interrupted(BaseException):
    """The call was stopped because it took too long."""


class Peer:
    """One of the two sides.

    Args:
        post: sends a message to the other side.
        wait: returns the next message of the other side.
        is_open: whether lent objects reveal their sources and tensors. Those of the check do not.
        operations: more operations that the other side may request, by name.
    """

    def __init__(
        self,
        post: Callable[[dict[str, Any]], None],
        wait: Callable[[], dict[str, Any]],
        *,
        is_open: bool,
        **operations: Callable[[dict[str, Any]], dict[str, Any]],
    ):
        self.post, self.wait, self.is_open = post, wait, is_open
        self.serves = {"call": self._called, "vjp": self._backward, **operations}
        self._count = itertools.count(1)
        self.mine: dict[int, Any] = {}  # lent objects, by number
        self._numbers: dict[int, int] = {}  # their numbers, by identity
        self._sent: set[int] = set()
        self.theirs: dict[int, Any] = {}  # proxies and copies of the other side's objects
        self._their_numbers: dict[int, int] = {}
        self.graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    # ----------------------------------------------------------------------------- requests

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, and serve requests of the other side until the reply arrives.

        Args:
            request: the operation and its arguments.

        Raises:
            ProtocolError: the reply is invalid.
            Exception: what the call raised, under its own name.
        """
        number = next(self._count)
        self.post({"n": number, "ask": request})
        while True:
            message = self.wait()
            if "ask" in message:
                self.serve(message)
            elif message.get("n") == number:
                break
            else:
                raise ProtocolError("a reply without a request")
        if "raised" in message:
            raise _error(message["raised"])
        return message

    def call(
        self, target: dict[str, Any], args: tuple, kwargs: dict[str, Any], remote: Any = None
    ) -> Any:
        """Call something on the other side.

        Args:
            target: what to call.
            args, kwargs: its arguments.
            remote: the proxy of a layer whose method is called.
        """
        modes, profile = remote_modes.active(), sys.getprofile()
        sys.setprofile(None)  # a tracer's; the steps of sending are not the answer's
        saved = [mode.saved() for mode in modes]
        writer = Writer(self._lend, later=True)
        request = {
            "op": "call",
            "on": target,
            "args": [writer.write(arg) for arg in args],
            "kwargs": {name: writer.write(arg) for name, arg in kwargs.items()},
            "modes": [[mode.kind.__name__, mode.settings()] for mode in modes],
            "grad": _is_enabled(),
            # Both sides draw random numbers as one process would.
            "seed": int(torch.empty((), dtype=torch.int64).random_().item()),
        }
        if remote is not None:
            request["state"] = self._state(remote, writer)
        leaves = [t for t in writer.tensors if t.requires_grad] if request["grad"] else []
        call = _Call(self, request, args, writer)
        try:
            if leaves:
                made = _Bridge.apply(call, *leaves)
                result = call.read(list(made))
            else:
                call.go()
                result = call.read([])
        finally:
            for mode, was in zip(modes, saved, strict=True):
                mode.restore(was)
            sys.setprofile(profile)
        for mode, report in zip(modes, call.reports(), strict=False):
            mode.add(report)
        if call.reply.get("too_long"):
            raise TooLong
        return result

    def get(self, expression: str) -> Any:
        """Return the value of an expression on the other side.

        Args:
            expression: such as the name of an answer.
        """
        reply = self.ask(op="get", expression=expression)
        return Reader(self._borrow).read(reply.get("result"))

    def give(self, value: Any) -> dict[str, Any]:
        """Return the reply to `get`.

        Args:
            value: of the expression.
        """
        return {"result": Writer(self._lend).write(value)}

    # ------------------------------------------------------------------------------- serving

    def serve(self, message: dict[str, Any]) -> None:
        """Execute a request of the other side, and reply with the result or the error."""
        try:
            request = message["ask"]
            reply = self.serves[request["op"]](request)
        except Interrupted:
            raise
        except KeyboardInterrupt:
            reply = {"raised": {"name": "Interrupted", "text": "", "bases": []}}
        except BaseException as error:
            reply = {"raised": _plain_error(error)}
        self.post({"n": message["n"], **reply})

    def _called(self, request: dict[str, Any]) -> dict[str, Any]:
        reader = Reader(self._borrow)
        args = [reader.read(arg) for arg in request["args"]]
        kwargs = {name: reader.read(arg) for name, arg in request["kwargs"].items()}
        tensors = [reader.read(state) for state in request.get("state", {}).get("tensors", [])]
        function, holding = self._target(request, tensors)
        leaves = [t for t in reader.tensors if t.requires_grad]
        versions = [t._version for t in reader.tensors]
        lists = [(n, arg, list(arg)) for n, arg in enumerate(args) if type(arg) is list]
        modules = self._noted(args)
        number = int(request["seed"])
        _seed(number)
        random.seed(number)
        np.random.seed(number % 2**32)
        modes = [
            remote_modes.KINDS[name].again(given, reader.tensors)
            for name, given in request["modes"]
        ]
        too_long, was = False, _is_enabled()
        with contextlib.ExitStack() as stack:
            stack.callback(_enabled, was)
            _enabled(bool(request["grad"]))
            stack.enter_context(holding)
            for mode in modes:
                stack.enter_context(mode.mode)
            try:
                result = function(*args, **kwargs)
            except TooLong:
                result, too_long = None, True
        writer = Writer(self._lend)
        reply: dict[str, Any] = {"result": writer.write(result), "too_long": too_long}
        reply["modes"] = [mode.report() for mode in modes]
        if request["grad"] and leaves and any(t.requires_grad for t in writer.tensors):
            reply["graph"] = number = next(self._count)
            self.graphs[number] = [t for t in writer.tensors if t.requires_grad], leaves
            for old in list(self.graphs)[:-KEPT_GRAPHS]:
                del self.graphs[old]
        reply["written"] = [
            [place, Writer.tensor_to_bytes(tensor)]
            for place, (tensor, version) in enumerate(zip(reader.tensors, versions, strict=True))
            if tensor._version != version
        ]
        again = Writer(self._lend)
        reply["lists"] = [
            [place, [again.write(part) for part in now]]
            for place, now, before in lists
            if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))
        ]
        reply["changed"] = [
            [self._their_numbers[id(module)], self._state(module, again)]
            for module, before in modules
            if _versions(module) != before
        ]
        return reply

    def _target(
        self, request: dict[str, Any], tensors: list[Tensor]
    ) -> tuple[Callable, contextlib.AbstractContextManager]:
        """Return the callable of a request, and the context for the call."""
        on = request["on"]
        thing = self.mine[on["v"]]
        if "method" not in on:
            return thing, contextlib.nullcontext()
        if on["method"] not in _methods(type(thing)):
            raise ProtocolError(f"the method {on['method']}")
        # Call a layer as a whole, with its hooks.
        method = thing if on["method"] == "forward" else getattr(thing, on["method"])
        return method, _holding(thing, request["state"], tensors)

    def _noted(self, args: list[Any]) -> list[tuple[nn.Module, Any]]:
        """Return the other side's layers among arguments, with their versions."""
        found = [a for a in args if isinstance(a, nn.Module) and id(a) in self._their_numbers]
        return [(module, _versions(module)) for module in found]

    def _backward(self, request: dict[str, Any]) -> dict[str, Any]:
        made, leaves = self.graphs[request["graph"]]
        reader, writer = Reader(self._borrow), Writer(self._lend)
        grads = [reader.read(grad) for grad in request["grads"]]
        pairs = [(r, g) for r, g in zip(made, grads, strict=True) if g is not None]
        # torch would check gradients that it is given with sympy, which takes long to import
        if any((g.shape, g.is_complex()) != (r.shape, r.is_complex()) for r, g in pairs):
            raise ProtocolError("a gradient with a wrong shape")
        with torch.enable_grad():
            total = sum((g.conj() * r).sum().real for r, g in pairs)
            found = _grad(total, leaves, allow_unused=True, retain_graph=True)
        return {"grads": [writer.write(None if g is None else g.detach()) for g in found]}

    # ------------------------------------------------------------------------------- lending

    def _number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = number = next(self._count)
            self.mine[number] = thing
        return self._numbers[id(thing)]

    def _lend(self, thing: Any, writer: Writer) -> Any:
        """Serialize what is not a value: as a reference, or as an object of a shared class."""
        if id(thing) in self._their_numbers:
            number = self._their_numbers[id(thing)]
            return {"k": "yours", "v": number}
        if isinstance(thing, nn.Module):
            return self._lend_module(thing, writer)
        if isinstance(thing, type):
            return self._lend_class(thing)
        shared = name_of_shared(type(thing))
        if not shared and not callable(thing):
            return {"k": "opaque", "name": type(thing).__name__}
        number = self._number(thing)
        if number in self._sent:
            return {"k": "mine", "v": number}
        self._sent.add(number)
        if shared and not isinstance(thing, FunctionType):
            holds = {name: writer.write(part, 1) for name, part in vars(thing).items()}
            return {"k": "object", "v": number, "class": shared, "holds": holds}
        return {"k": "function", "v": number, **self._described(thing)}

    def _described(self, function: Any) -> dict[str, Any]:
        name = getattr(function, "__name__", type(function).__name__)
        qualname = getattr(function, "__qualname__", name)
        if not self.is_open:  # a name may reveal the solution
            name = qualname = name if name.startswith("__") else "borrowed"
        try:
            parameters = [
                [p.name, int(p.kind), p.default is not p.empty]
                for p in inspect.signature(function).parameters.values()
            ]
        except (TypeError, ValueError):
            parameters = None
        text = source(function) if self.is_open and isinstance(function, FunctionType) else ""
        return {"name": name, "qualname": qualname, "parameters": parameters, "source": text}

    def _lend_class(self, kind: type) -> Any:
        if shared := name_of_shared(kind):
            return {"k": "shared", "v": shared}
        number = self._number(kind)
        if number in self._sent:
            return {"k": "mine", "v": number}
        self._sent.add(number)
        return {
            "k": "class",
            "v": number,
            "name": kind.__name__ if self.is_open else "Borrowed",
            "base": name_of_shared(_base(kind)) if issubclass(kind, nn.Module) else None,
            "methods": {name: self._described(f) for name, f in _methods(kind).items()},
        }

    def _lend_module(self, module: nn.Module, writer: Writer) -> Any:
        number = self._number(module)
        if number in self._sent:
            return {"k": "mine", "v": number, "state": self._state(module, writer)}
        self._sent.add(number)
        holds = {}
        for name, part in vars(module).items():
            hidden = (
                not self.is_open and name not in OWN_TABLES and not name_of_shared(type(module))
            )
            if name in _fresh or (hidden and not isinstance(part, bool | int | float | str)):
                continue
            holds[name] = writer.write(part, 1)
        return {"k": "module", "v": number, "class": self._lend_class(type(module)), "holds": holds}

    @staticmethod
    def _state(module: nn.Module, writer: Writer) -> dict[str, Any]:
        """Serialize the tensors of a layer, and the names of its parts in training mode."""
        named = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        return {
            "names": [name for name, _ in named],
            "tensors": [writer.write(tensor) for _, tensor in named],
            "training": [name for name, part in module.named_modules() if part.training],
        }

    # ------------------------------------------------------------------------------- borrowing

    def _borrow(self, data: dict[str, Any], reader: Reader) -> Any:
        """Return the object for what the other side lends."""
        kind, number = data["k"], data.get("v")
        if kind == "yours":
            return self.mine[number]
        if kind == "shared":
            return shared_class(number)
        if kind == "mine":
            found = self.theirs[number]
            if "state" in data:
                _take_state(found, data["state"], reader)
            return found
        makers = {
            "function": self._function,
            "class": self._class,
            "module": self._module,
            "object": self._object,
        }
        if kind not in makers:
            raise ProtocolError(f"a value of kind {str(kind)[:20]}")
        if number not in self.theirs:
            makers[kind](data, reader)
        return self.theirs[number]

    def _keep(self, number: int, thing: Any) -> Any:
        self._their_numbers.pop(id(self.theirs.get(number)), None)
        self.theirs[number] = thing
        self._their_numbers[id(thing)] = number
        return thing

    def _function(self, data: dict[str, Any], _reader: Reader) -> None:
        number = data["v"]

        def ask(*args: Any, **kwargs: Any) -> Any:
            return self.call({"v": number}, args, kwargs)

        self._keep(number, _proxy(ask, data))

    def _class(self, data: dict[str, Any], _reader: Reader) -> None:
        peer, number = self, data["v"]
        base = shared_class(data["base"]) if data["base"] else object

        def method_of(name: str) -> Callable:
            def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
                where = {"v": vars(self)[NUMBER], "method": name}
                return peer.call(where, args, kwargs, remote=self)

            return ask

        def begin(self: Any, *args: Any, **kwargs: Any) -> None:
            made = peer.call({"v": number}, args, kwargs)
            if type(made) is not type(self):
                raise ProtocolError("a new object of a different class")
            self.__dict__.update(vars(made))
            peer._keep(vars(made)[NUMBER], self)

        methods = {
            str(name): _proxy(begin if name == "__init__" else method_of(name), described)
            for name, described in data["methods"].items()
        }
        methods.setdefault("__init__", begin)
        self._keep(number, type(str(data["name"]), (base,), methods))

    def _module(self, data: dict[str, Any], reader: Reader) -> None:
        kind = reader.read(data["class"])
        if not isinstance(kind, type) or not issubclass(kind, nn.Module):
            raise ProtocolError("a layer without a class")
        module = kind.__new__(kind)
        nn.Module.__init__(module)
        self._keep(data["v"], module)
        holds = {str(name): reader.read(part) for name, part in data["holds"].items()}
        wanted = {"_parameters": nn.Parameter, "_buffers": Tensor, "_modules": nn.Module}
        for name, part in wanted.items():
            table = holds.get(name, {})
            if any(one is not None and not isinstance(one, part) for one in table.values()):
                raise ProtocolError(f"a layer with invalid {name}")
        module.__dict__.update(holds)
        module.__dict__[NUMBER] = data["v"]

    def _object(self, data: dict[str, Any], reader: Reader) -> None:
        kind = shared_class(data["class"])
        thing = self._keep(data["v"], object.__new__(kind))
        holds = {str(name): reader.read(part) for name, part in data["holds"].items()}
        for name, part in holds.items():
            object.__setattr__(thing, name, part)


class _Call:
    """A call of the other side, and its reply."""

    def __init__(self, peer: Peer, request: dict[str, Any], args: tuple, writer: Writer):
        self.peer, self.request, self.args, self.writer = peer, request, args, writer
        self.tensors = writer.tensors
        self.reply: dict[str, Any] = {}
        self.reached: list[bool] = []  # which arguments the last backward pass reached

    def go(self, leaves: tuple[Tensor, ...] = ()) -> list[Tensor]:
        """Make the call, and return the results that carry gradients.

        Args:
            leaves: the arguments with gradients.
        """
        given = iter(leaves)
        self.writer.fill([next(given, t) if t.requires_grad else t for t in self.tensors])
        self.reply = self.peer.ask(**self.request)
        reader = Reader(self.peer._borrow)
        reader.read(self.reply.get("result"))
        return [t.detach() for t in reader.tensors if t.requires_grad]

    def read(self, made: list[Tensor]) -> Any:
        """Return the result, and repeat in-place changes of arguments here.

        Args:
            made: the results that carry gradients, as tensors of this side.
        """
        reader = _Flowing(self.peer._borrow, made)
        result = reader.read(self.reply.get("result"))
        with _no_grad():
            for place, written in self.reply.get("written", []):
                value = Reader.tensor_from_bytes(written)
                if value.shape == self.tensors[place].shape:
                    self.tensors[place].copy_(value)
        for place, parts in self.reply.get("lists", []):
            if type(self.args[place]) is list:
                self.args[place][:] = [reader.read(part) for part in parts]
        for number, state in self.reply.get("changed", []):
            _take_state(self.peer.mine[number], state, reader)
        return result

    def reports(self) -> list[dict[str, Any]]:
        """Return what the modes of the call saw."""
        return [report for report in self.reply.get("modes", []) if isinstance(report, dict)]


class _Flowing(Reader):
    """A reader of results whose tensors with gradients exist already."""

    def __init__(self, borrow: Callable, made: list[Tensor]):
        super().__init__(borrow)
        self._made = iter(made)

    def _tensor(self, data: dict[str, Any]) -> Tensor:
        # Inside of torch.func's transforms no tensor may be set to require gradients.
        value = super()._tensor({**data, "grad": False})
        if data["grad"] and (value.is_floating_point() or value.is_complex()):
            value = next(self._made, value)
            self.tensors[-1] = value
        return value


class _Bridge(torch.autograd.Function):
    """An autograd step that runs on the other side."""

    @staticmethod
    def forward(call: _Call, *leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(call.go(leaves))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.call = inputs[0]
        ctx.shapes = [leaf.shape for leaf in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        found = _Back.apply(ctx.call, ctx.shapes, *grads)
        return (
            None,
            *(g if is_one else None for g, is_one in zip(found, ctx.call.reached, strict=True)),
        )


class _Back(torch.autograd.Function):
    """The backward pass of such a step; also for many gradients at once (torch.vmap)."""

    @staticmethod
    def forward(call: _Call, shapes: list[torch.Size], *grads: Tensor) -> tuple[Tensor, ...]:
        writer, reader = Writer(call.peer._lend), Reader(call.peer._borrow)
        written = [writer.write(grad) for grad in grads]
        reply = call.peer.ask(op="vjp", graph=call.reply["graph"], grads=written)
        found = [reader.read(grad) for grad in reply["grads"]]
        call.reached = [grad is not None for grad in found]
        pairs = list(zip(found, shapes, strict=True))
        if any(g is not None and (not isinstance(g, Tensor) or g.shape != s) for g, s in pairs):
            raise ProtocolError("a gradient with a wrong shape")
        return tuple(torch.zeros(s, dtype=grads[0].dtype) if g is None else g for g, s in pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Store nothing: second derivatives are not supported."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple, call: _Call, shapes: list, *grads: Tensor) -> tuple:
        rows = []
        for row in range(info.batch_size):
            pairs = zip(grads, in_dims[2:], strict=True)
            rows.append(
                _Back.apply(call, shapes, *(g if d is None else g.select(d, row) for g, d in pairs))
            )
        return tuple(map(torch.stack, zip(*rows, strict=True))), (0,) * len(shapes)


# ------------------------------------------------------------------------------------ errors


def _plain_error(error: BaseException) -> dict[str, Any]:
    """Serialize an error: its name, its text, and its built-in base classes."""
    try:
        text = str(error)[:MAX_TEXT]
    except Exception:
        text = ""
    bases = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    return {"name": type(error).__name__, "text": text, "bases": bases}


def _error(plain: Any) -> BaseException:
    """Return an error with the same name and text."""
    if not isinstance(plain, dict):
        raise ProtocolError("an invalid error")
    name, text = str(plain.get("name"))[:100], str(plain.get("text"))[:MAX_TEXT]
    if name == "Interrupted":
        return Interrupted()
    for base in plain.get("bases", []):
        kind = getattr(builtins, str(base), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):
                return type(
                    name, (kind,), {"__init__": lambda self, *_: None, "__str__": lambda _: text}
                )()
    return type(name, (Exception,), {"__str__": lambda _: text})()


# ------------------------------------------------------------------------------------ proxies


def _proxy(ask: Callable, data: dict[str, Any]) -> Callable:
    """Return a function with the name, the parameters and the source of a remote one."""
    name = str(data["name"])[:200]
    text = str(data.get("source") or "")
    file = f"<answer {next(_files)}>"
    if text:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    code = ask.__code__.replace(co_filename=file, co_firstlineno=1, co_name=name)
    made = FunctionType(code, ask.__globals__, name, ask.__defaults__, ask.__closure__)
    made.__qualname__ = str(data["qualname"])[:300]
    with contextlib.suppress(TypeError, ValueError, KeyError):
        made.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    str(name),
                    KIND_OF_PARAMETER(kind),
                    default=... if optional else inspect.Parameter.empty,
                )
                for name, kind, optional in data["parameters"]
            ]
        )
    return made


def _base(kind: type) -> type:
    """Return the nearest base class that both sides have."""
    return next(base for base in kind.__mro__ if name_of_shared(base))


def _methods(kind: type) -> dict[str, FunctionType]:
    """Return the methods of a class that the other side does not have."""
    found: dict[str, FunctionType] = {}
    for base in kind.__mro__:
        if name_of_shared(base) or base is object:
            break
        for name, part in vars(base).items():
            if isinstance(part, FunctionType):
                found.setdefault(name, part)
    return found


def _versions(module: nn.Module) -> Any:
    named = [*module.named_parameters(), *module.named_buffers()]
    tensors = [(name, id(t), t._version, t.data_ptr()) for name, t in named]
    return tensors, [part.training for part in module.modules()]


def _take_state(module: nn.Module, state: dict[str, Any], reader: Reader) -> None:
    """Copy the state of the other side's layer into the layer of this side."""
    if not isinstance(module, nn.Module):
        raise ProtocolError("a state without a layer")
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    with _no_grad():
        for name, data in zip(state["names"], state["tensors"], strict=True):
            value = reader.read(data)
            if name in own and isinstance(value, Tensor):
                if own[name].shape == value.shape and own[name].dtype == value.dtype:
                    if not torch.equal(own[name], value):
                        own[name].copy_(value)
                else:
                    own[name].data = value.detach()
    training = set(state["training"])
    for name, part in module.named_modules():
        part.training = name in training


@contextlib.contextmanager
def _holding(module: nn.Module, state: dict[str, Any], tensors: list[Tensor]) -> Iterator[None]:
    """Let a layer hold other tensors during a call."""
    kept = []
    training = set(state["training"])
    modes = [(part, part.training) for part in module.modules()]
    try:
        for name, part in module.named_modules():
            part.training = name in training
        for name, tensor in zip(state["names"], tensors, strict=True):
            path, _, last = name.rpartition(".")
            part = module.get_submodule(path)
            learned, others = (vars(part)[name] for name in OWN_TABLES[:2])
            table = learned if last in learned else others
            if last in table:
                kept.append((table, last, table[last]))
                table[last] = tensor
        yield
    finally:
        for table, last, tensor in reversed(kept):
            table[last] = tensor
        for part, mode in modes:
            part.training = mode


__all__ = ["Interrupted", "Peer", "ProtocolError", "Unserializable"]
