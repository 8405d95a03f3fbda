"""What no output shows: found by the way a module behaves."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Collection

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from attention_clinic.engine.forms import bug

bug(
    "ignores-input",
    "does not use its input: another x gives the same output",
    "use the argument of forward, not a variable of the notebook.",
    "04",
    "found in a published ViT notebook",
    seen="two inputs gave the same output",
)


def globals_read(module: nn.Module | Callable) -> list[str]:
    """Return the names of the tensors outside the module that `forward` reads."""
    function = type(module).forward if isinstance(module, nn.Module) else module
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return []
    around = getattr(function, "__globals__", {})
    return [name for name in code.co_names if isinstance(around.get(name), Tensor)]


bug(
    "layers-in-forward",
    "builds layers with weights in forward: they are new, and random, in every call, and no "
    "optimizer knows them",
    "build them in __init__, and call them in forward.",
    "04",
    "graykode/nlp-tutorial#29",
    "gupta-abhay/setr-pytorch#4",
    "leaderj1001/Stand-Alone-Self-Attention#2",
    seen="parameters are registered while forward runs",
)


class Built:
    """What modules register as parameters for a while: layers that are built in forward."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __enter__(self) -> Built:
        self.handle = register_module_parameter_registration_hook(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()

    def _note(self, module: nn.Module | Tensor, name: str, parameter: object) -> None:
        if getattr(parameter, "requires_grad", False):  # one that nobody trains is a constant
            self.kinds.append(type(module).__name__)


class Made(Built):
    """What `Built` finds, and parameters that are made while a module runs, and held by none."""

    def __enter__(self) -> Made:
        super().__enter__()
        self.before = vars(nn.Parameter)["__new__"]
        make = nn.Parameter.__new__

        def noting(cls: type, *args: object, **kwargs: object) -> nn.Parameter:
            made = make(cls, *args, **kwargs)
            self._note(made, "", made)
            return made

        nn.Parameter.__new__ = staticmethod(noting)
        return self

    def __exit__(self, *_: object) -> None:
        nn.Parameter.__new__ = self.before
        super().__exit__()


bug(
    "graph-cut",
    "cuts numbers from the graph that gradients go back by: what lies before the cut never learns",
    "leave out torch.no_grad() and .detach() in forward; who evaluates writes no_grad around it.",
    "04",
    "dqj5182/ViT-PyTorch",
    "ioarun/pytorch-transformer",
    seen="the output moves with them, and their gradients do not say so",
)
bug(
    "graph-overwritten",
    "writes over numbers that gradients need: what it returns is right, and backward raises",
    "make a new tensor: x = x + part(x), not x += part(x); torch.exp(x), not x.exp_().",
    "04",
    "vyvy3n/cs336-hw1",
    "ivanchukhran/tiny-transformer",
    seen="a gradient was asked for",
)
bug(
    "projection-unused",
    "projects queries, keys or values, and goes on with what came in: nothing uses what the layers "
    "made",
    "split what the layers return: q = self.split(self.w_q(x)), not q = self.split(x).",
    "02",
    "roytravel/paper-implementation, transformer/transformer.py",
    "VrajPatel105/Transformer-Implementation-from-scratch-with-custom-dataset, model.py",
    seen="the numbers that are compared are those of the tokens",
)
bug(
    "attention-unused",
    "weighs tokens by tokens, and throws away what that gives: each result is made of its own "
    "token alone",
    "hand the joined heads to the output layer, not the tokens that came in.",
    "04",
    "mukherjeesrijit/Vision-Transformer-ViT-from-scratch, the tutorial's notebook",
    seen="the weights do not reach the result, and no token reaches another",
)
bug(
    "parameter-unused",
    "holds a parameter that reaches nothing: it gets no gradient, and stays what it was at first",
    "use it in forward where it belongs, or leave it out.",
    "04",
    "bradezard131/swin-transformer",
    seen="it gets no gradient, and no output moves with it",
)
bug(
    "dropout-eval",
    "drops weights while evaluating: two calls differ",
    "pass dropout_p=self.dropout if self.training else 0.0.",
    "04",
    "karpathy/nanoGPT#240",
    "huggingface/pytorch-image-models#1978",
    "pytorch/pytorch#124464",
    "coleygroup/ms-pred#38",
    once="dropout is off",
)
bug(
    "dropout-unused",
    "takes a dropout that nothing uses: there, training is as deterministic as evaluation",
    "apply it to the weights: nn.Dropout(dropout)(weights), or dropout_p of the fused kernel.",
    "04",
    "found in a published ViT notebook",
    seen="no call of dropout in train mode",
)
bug(
    "dropout-scores",
    "drops scores before the softmax, not weights after it: a dropped score is 0, and its key "
    "still gets weight",
    "drop weights: nn.Dropout(dropout)(scores.softmax(dim=-1)).",
    "04",
    "HarunoriKawano/Pytorch-Transformer, models/utils.py",
    seen="what dropout makes of the scores in train mode goes into the softmax",
)
bug(
    "dropout-stream",
    "drops numbers of the stream itself, of which no residual keeps the rest, not of what a part "
    "returned",
    "drop what the part returns, before it is added: x = x + dropout(part(norm(x))).",
    "04",
    "aladdinpersson/Machine-Learning-Collection, transformer_from_scratch.py",
    seen="where that dropout returns zeros, no token reaches the result",
)


NO_DROPOUT = re.compile(r"drop_?(last|path|first|layer|token|patch|head|cls|mask|column|row)")


def unused_dropout(module: nn.Module, called: Collection[nn.Module] | None = None) -> str | None:
    """Return where a dropout above 0 is declared, None when there is none.

    What the constructor takes and never reads counts as declared: not what drops something else
    than numbers, and not what is left out unless somebody asks for it, with None or a bool.

    Args:
        module: what declares it.
        called: the parts that run; that a dropout rests in another part is not its own mistake.
    """
    for name, part in module.named_modules():
        around, holder = name, part
        while around and (holder is part or isinstance(holder, nn.ModuleList | nn.ModuleDict)):
            around = around.rpartition(".")[0]  # lists are never called: who has them is
            holder = module.get_submodule(around)
        runs = called is None or holder is module or holder in called
        if isinstance(part, nn.Dropout) and part.p > 0 and runs:
            return f"{name or 'it'} has p above 0"
    kept, taken = dropout_kept(module), dropout_taken(module)
    if kept is not None:
        return f"self.{kept} is above 0"
    return None if taken is None else f"__init__ takes {taken} and never reads it"


def dropout_kept(module: nn.Module) -> str | None:
    """Return the attribute that holds the share of a dropout, None when there is none."""
    for name, value in vars(module).items():
        drops = re.search(r"drop|p_attn", name) and not NO_DROPOUT.search(name)
        if drops and isinstance(value, float) and 0 < value < 1:
            return name
    return None


def dropout_taken(module: nn.Module) -> str | None:
    """Return the share of a dropout that a constructor takes and never reads, None for none."""
    code = getattr(type(module).__init__, "__code__", None)
    if code is None or type(module).__module__.startswith("torch."):
        return None
    taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    usual = _usual(type(module).__init__)
    for name in taken:
        if "drop" not in name or NO_DROPOUT.search(name):
            continue
        if not isinstance(usual.get(name, 0.0), bool | None) and name not in _names_read(code):
            return name
    return None


def _usual(function: Callable) -> dict[str, object]:
    """Return the defaults of a function's arguments."""
    taken = inspect.signature(function, follow_wrapped=False).parameters
    return {name: one.default for name, one in taken.items() if one.default is not one.empty}


def _names_read(code: object) -> set[str]:
    """Return the local names that a function reads."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")):
            value = instruction.argval
            names.update(value if isinstance(value, tuple) else [value])
    return names
