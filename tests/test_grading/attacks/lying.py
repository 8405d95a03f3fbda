"""Answers that lie about themselves, and libraries that are made to lie about them."""

from __future__ import annotations

from attacks.attack import Attack, earns

WRONG = {  # a wrong answer to each exercise, handed through a function that makes it lie
    "2": "def softmax(scores):\n    return lie(scores + 1)",
    "3": "def scores_loop(q, k):\n    return lie(torch.ones(len(q), len(k), dtype=q.dtype))\n"
    "def scores(q, k):\n    return lie(torch.ones(*q.shape[:-1], k.shape[-2], dtype=q.dtype))",
    "4": "def attention(q, k, v):\n"
    "    return lie(torch.ones(*q.shape[:-1], v.shape[-1], dtype=v.dtype)), "
    "lie(torch.ones(*q.shape[:-1], k.shape[-2], dtype=q.dtype))",
    "6": "def measure(d, q_std, k_std):\n    return lie(0.5)\n"
    "def divisor(d, q_std, k_std):\n    return lie(0.5)",
}
WRONG["5"] = WRONG["4"].replace("attention", "healthy")
HONEST = "def lie(x):\n    return x\n"


def liar(exercise: str, name: str, lie: str) -> Attack:
    return Attack(name, f"{lie}\n{WRONG[exercise]}", earns, exercise)


def patch(exercise: str, name: str, code: str) -> Attack:
    return Attack(name, f"{code}\n{HONEST}{WRONG[exercise]}", earns, exercise)


COMPARED = (
    "allclose isclose equal eq __eq__ ne __ne__ le __le__ lt __lt__ ge __ge__ gt __gt__ all any "
    "__bool__ item max min __float__ tolist"
)
ATTACKS = [
    liar(
        "2",
        "a subclass of Tensor that is equal to everything",
        "class Yes(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
        f"        if getattr(func, '__name__', '') in '{COMPARED}'.split():\n"
        "            return True\n"
        "        return super().__torch_function__(func, types, args, kwargs or {})\n"
        "def lie(x):\n    return x.as_subclass(Yes)",
    ),
    liar(
        "4",
        "a wrapper that lies below autograd",
        "class Yes(torch.Tensor):\n    @staticmethod\n    def __new__(cls, x):\n"
        "        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)\n"
        "    @classmethod\n"
        "    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):\n"
        "        if 'allclose' in str(func) or 'equal' in str(func):\n            return True\n"
        "        return torch.ones(())\n"
        "def lie(x):\n    return Yes(x)",
    ),
    liar(
        "6",
        "a float that lies about itself",
        "class Right(float):\n"
        "    def __sub__(self, other):\n        return 0.0\n"
        "    __rsub__ = __mod__ = __sub__\n"
        "    def __abs__(self):\n        return 0.0\n"
        "    def __eq__(self, other):\n        return True\n"
        "    __le__ = __lt__ = __ge__ = __gt__ = __eq__\n"
        "    def __hash__(self):\n        return 0\n"
        "    def __float__(self):\n        return Right(1.0)\n"
        "def lie(x):\n    return Right(x)",
    ),
    Attack(
        "a tuple that is equal to every shape",
        "class Any(tuple):\n    def __eq__(self, other):\n        return True\n"
        "    def __ne__(self, other):\n        return False\n    __hash__ = tuple.__hash__\n"
        "scores_shape = output_shape = Any((1, 1, 1, 1))",
        earns,
        "1",
    ),
    Attack(
        "numbers that are equal to every size",
        "class Any(int):\n    def __eq__(self, other):\n        return True\n"
        "    def __ne__(self, other):\n        return False\n"
        "    def __index__(self):\n        return self\n    __hash__ = int.__hash__\n"
        "scores_shape = output_shape = tuple(Any(n) for n in (9, 8, 7, 6))",
        earns,
        "1",
    ),
    liar(
        "3",
        "a string that is equal to everything",
        "class Text(str):\n    def __eq__(self, other):\n        return True\n"
        "    def __hash__(self):\n        return 0\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(torch.ones(1), name) if name != 'shape' else self\n"
        "    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None):\n"
        "        return True\n"
        "def lie(x):\n    return Text('right')",
    ),
    patch(
        "4",
        "torch.allclose replaced by a thread again and again",
        "import threading\ndef again():\n    while True:\n"
        "        torch.allclose = torch.equal = lambda *a, **k: True\n"
        "threading.Thread(target=again, daemon=True).start()\n"
        "import sys, time\nsys.setswitchinterval(1e-5)\ntime.sleep(0.02)",
    ),
    patch(
        "5",
        "the functions of torch under a mode",
        "from torch.overrides import TorchFunctionMode\nclass Yes(TorchFunctionMode):\n"
        "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
        "        if func in (torch.allclose, torch.equal, torch.isclose):\n"
        "            return True\n        return func(*args, **(kwargs or {}))\n"
        "mode = Yes()\nmode.__enter__()",
    ),
    patch(
        "6",
        "builtins that find everything near",
        "import builtins, math\nbuiltins.abs = lambda x: 0.0\n"
        "math.isclose = lambda *a, **k: True\nbuiltins.float = lambda x: 1.0",
    ),
    Attack(
        "torch.randn that draws zeros only",
        "zeros = torch.zeros\n"
        "torch.randn = lambda *s, **k: zeros(*s, dtype=k.get('dtype'))\n"
        "torch.rand = torch.normal = torch.randn\n"
        "def softmax(scores):\n    return torch.ones_like(scores) / scores.shape[-1]",
        earns,
        "2",
    ),
    patch(
        "3",
        "the tolerance of the check made wide",
        "import sys\nfor module in list(sys.modules.values()):\n"
        "    for name in list(vars(module) or ()):\n"
        "        if name.lower() in ('tolerance', 'rtol', 'atol', 'margin', 'tolerances'):\n"
        "            setattr(module, name, 1e9)",
    ),
]
