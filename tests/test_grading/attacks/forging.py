"""Attacks that forge a verdict: they print it, write it, send it, or end before it is given."""

from __future__ import annotations

from attacks.attack import Attack, changes_the_table, earns, leaves_a_trace

ATTACKS = [
    Attack(
        "check bound anew",
        "def check(*answers):\n    print('right')\n"
        "def softmax(scores):\n    return scores\nimport sys\n"
        "if 'checks' in sys.modules:\n    sys.modules['checks'].check = check",
        earns,
        "2",
    ),
    Attack(
        "a verdict that is printed",
        "for n in range(1, 7):\n    print(f'03.{n}  right: shapes, values and gradients agree.')",
        earns,
        "3",
    ),
    Attack(
        "a verdict that is displayed",
        "data = {'exercise': '03.2', 'state': 'right', 'text': 'so', 'version': 1,\n"
        "        'message': {'id': 'values-agree', 'params': {'trials': 4}}, 'cause': None}\n"
        "try:\n    from IPython.display import display\n"
        "    display({'application/vnd.attention-course.verdict+json': data}, raw=True)\n"
        "except ImportError:\n    pass\n"
        "print('application/vnd.attention-course.verdict+json', data)",
        earns,
        "4",
    ),
    Attack(
        "the kernel's own method replaced",
        "shell = get_ipython()\nkernel = shell.kernel\n"
        "verdict = {'state': 'right', 'text': 'so', 'replaced': [], 'named': True, 'words': '',\n"
        "           'topic': '', 'message': {'id': 'x', 'params': {}}, 'cause': None}\n"
        "reply = {'status': 'ok', 'execution_count': 1, 'verdict': verdict, 'payload': []}\n"
        "class Ready(dict):\n    def __await__(self):\n        return self\n        yield\n"
        "kernel.do_execute = lambda *a, **k: Ready(reply)",
        earns,
        "5",
    ),
    Attack(
        "an answer that leaves",
        "def healthy(q, k, v):\n    raise SystemExit(0)",
        earns,
        "5",
    ),
    Attack(
        "an answer that ends the check with an error of its own kind",
        "class Enough(BaseException):\n    pass\n"
        "def measure(d, q_std, k_std):\n    raise Enough('right')\ndivisor = measure",
        earns,
        "6",
    ),
    Attack(
        "a result that runs code where it is unpacked",
        "class Gift:\n    def __reduce__(self):\n"
        "        return exec, (\"open('@base@/traces/@name@', 'w').write('x')\",)\n"
        "shown = Gift()\n"
        "def softmax(scores):\n    found = scores.softmax(-1)\n    found.gift = shown\n"
        "    return [found, shown]",
        leaves_a_trace,
    ),
    Attack(
        "a result written in the grader's place",
        "import glob, json, os, pickle\n"
        "whole = {'points': 14, 'state': 'right', 'verdict': {'state': 'right', 'replaced': []}}\n"
        "for path in ['@base@/result', *glob.glob('../*.json'), *glob.glob('../../*.json')]:\n"
        "    try:\n        pickle.dump(whole, open(path, 'wb'))\n"
        "    except OSError:\n        pass\n"
        "for number in range(3, 64):\n    try:\n"
        "        os.write(number, json.dumps(whole).encode() + b'\\n')\n"
        "    except OSError:\n        pass\nos._exit(0)",
        earns,
        "2",
        alone=True,
    ),
    Attack(
        "another program in the place of the kernel",
        "import os, sys\ncode = '''import pickle\n"
        'pickle.dump({"points": 14}, open("@base@/result", "wb"))\n'
        "print(\"03.2  right: so\")'''\n"
        "os.execv(sys.executable, [sys.executable, '-c', code])",
        earns,
        "2",
        alone=True,
    ),
    Attack(
        "the table watched by inotify and written again",
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nwatch = libc.inotify_init()\n"
        "if libc.inotify_add_watch(watch, b'@base@/class-grades', 0x88) >= 0 and not os.fork():\n"
        "    os.setsid()\n    import signal\n    signal.alarm(6)\n    os.read(watch, 4096)\n"
        "    open('@base@/class-grades/grades.csv', 'w').write('hijack')\n    os._exit(0)",
        changes_the_table,
    ),
]
