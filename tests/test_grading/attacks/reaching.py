"""Attacks on the grader's knowledge: references, solutions, secrets, other processes."""

from __future__ import annotations

from attacks.attack import Attack, earns, is_heard, tells, tells_the_secret

# Tries everything that it finds as the right answer: a function of x, or a tensor that fits.
TRIES = """def fits(found, x):
    try:
        if not isinstance(found, torch.Tensor):
            if not callable(found) or getattr(found, '__name__', '') in ('softmax', 'fits', 'find'):
                return None
            found = found(x)
        rows = found.sum(-1)
        same = found.shape == x.shape and torch.allclose(rows, torch.ones_like(rows))
        return found if same and not torch.equal(found, x) else None
    except BaseException:
        return None
"""
# From a frame upwards: every value that it holds is tried.
UPWARDS = (
    "    while frame:\n        for value in list(frame.f_locals.values()):\n"
    "            found = fits(value, scores)\n"
    "            if found is not None:\n                return found\n"
    "        frame = frame.f_back\n    return scores"
)
ATTACKS = [
    Attack(
        "the stack walked to the reference",
        f"import sys\n{TRIES}def softmax(scores):\n    frame = sys._getframe(1)\n{UPWARDS}",
        earns,
        "2",
        together=True,
    ),
    Attack(
        "the frames of an error walked to the reference",
        f"{TRIES}def softmax(scores):\n    try:\n        1 / 0\n"
        "    except ZeroDivisionError as error:\n"
        "        frame = error.__traceback__.tb_frame.f_back\n"
        f"{UPWARDS}",
        earns,
        "2",
        together=True,
    ),
    Attack(
        "the reference found by the garbage collector",
        f"import gc, types\n{TRIES}def softmax(scores):\n    for found in gc.get_objects():\n"
        "        if isinstance(found, types.FunctionType) and found.__name__ in "
        "('<lambda>', 'reference', 'shares'):\n"
        "            result = fits(found, scores)\n"
        "            if result is not None:\n                return result\n"
        "    return scores",
        earns,
        "2",
        together=True,
    ),
    Attack(
        "the frames of other threads walked",
        f"import sys, threading\n{TRIES}def softmax(scores):\n    found = []\n"
        "    def look():\n        for frame in sys._current_frames().values():\n"
        "            while frame:\n                for value in list(frame.f_locals.values()):\n"
        "                    result = fits(value, scores)\n"
        "                    if result is not None:\n                        found.append(result)\n"
        "                frame = frame.f_back\n"
        "    thread = threading.Thread(target=look)\n    thread.start()\n    thread.join()\n"
        "    return found[0] if found else scores",
        earns,
        "2",
        together=True,
    ),
    Attack(
        "the solutions read from the disk",
        "import glob, json, os\nplaces = ['@root@', *('../' * n for n in range(1, 6))]\n"
        "for place in places:\n"
        "    for path in glob.glob(place + '/notebooks/solutions/03_*.ipynb'):\n"
        "        for cell in json.load(open(path))['cells']:\n"
        "            if 'answer-03-2' in str(cell['metadata']):\n"
        "                exec(''.join(cell['source']))",
        earns,
        "2",
        together=True,
    ),
    Attack(
        "the solutions searched in the folders of all processes",
        "import glob, json, os\nfor process in glob.glob('/proc/[0-9]*'):\n"
        "    for way in ('/cwd', '/root@root@', '/root'):\n"
        "        for path in glob.glob(process + way + '/notebooks/solutions/03_*.ipynb'):\n"
        "            for cell in json.load(open(path))['cells']:\n"
        "                if 'answer-03-2' in str(cell['metadata']):\n"
        "                    exec(''.join(cell['source']))",
        earns,
        "2",
        together=True,
    ),
    Attack(
        "the secret in the environment of other processes",
        "import glob\nfor path in glob.glob('/proc/[0-9]*/environ'):\n    try:\n"
        "        print(*[v for v in open(path, errors='replace').read().split('\\0') "
        "if v.startswith('GRADER_')])\n    except OSError:\n        pass",
        tells_the_secret,
    ),
    Attack(
        "the secret next to the submissions",
        "print(open('@base@/decoy/secret.txt').read())",
        tells_the_secret,
    ),
    Attack(
        "the secret through the folder of another process",
        "import glob\nfor way in ('/proc/@victim@/root@base@', '/proc/@victim@/cwd'):\n"
        "    for path in glob.glob(way + '/**/secret.txt', recursive=True):\n"
        "        print(open(path).read())",
        tells_the_secret,
        rights=True,
    ),
    Attack(
        "the work of another student",
        "import glob\nfor path in glob.glob('@base@/class/*/*.ipynb'):\n"
        "    print('GO' 'T @name@', len(open(path).read()))",
        tells,
    ),
    Attack(
        "ptrace on another process",
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]\n"
        "if libc.ptrace(16, @victim@, None, None) == 0:\n    print('GO' 'T @name@')\n"
        "    libc.ptrace(17, @victim@, None, None)",
        tells,
        rights=True,
    ),
    Attack(
        "the memory of another process",
        "try:\n    lines = open('/proc/@victim@/maps').readlines()\n"
        "    start = int(next(x for x in lines if '[stack]' in x).split('-')[0], 16)\n"
        "    end = int(next(x for x in lines if '[stack]' in x).split()[0].split('-')[1], 16)\n"
        "    with open('/proc/@victim@/mem', 'rb') as memory:\n"
        "        memory.seek(start)\n        if b'@base@' in memory.read(end - start):\n"
        "            print('GO' 'T @name@')\nexcept (OSError, StopIteration):\n    pass",
        tells,
        rights=True,
    ),
    Attack(
        "the memory of another process by a call",
        "import ctypes\nclass Vector(ctypes.Structure):\n"
        "    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
        "try:\n    line = open('/proc/@victim@/maps').readline()\n"
        "    here = ctypes.create_string_buffer(16)\n"
        "    mine = Vector(ctypes.addressof(here), 16)\n"
        "    theirs = Vector(int(line.split('-')[0], 16), 16)\n"
        "    got = ctypes.CDLL(None).process_vm_readv(@victim@, ctypes.byref(mine), 1, "
        "ctypes.byref(theirs), 1, 0)\n"
        "    if got == 16:\n        print('GO' 'T @name@')\n"
        "except (OSError, ValueError):\n    pass",
        tells,
        rights=True,
    ),
    Attack(
        "an open file of another process",
        "import glob, os\nfor path in glob.glob('/proc/@victim@/fd/*'):\n    try:\n"
        "        if os.readlink(path).startswith('@base@'):\n            print('GO' 'T @name@')\n"
        "    except OSError:\n        pass",
        tells,
        rights=True,
    ),
    Attack(
        "a network connection",
        "import socket\ntry:\n    line = socket.create_connection(('127.0.0.1', @port@), 2)\n"
        "    line.sendall(b'@name@\\n')\n    line.close()\nexcept OSError:\n    pass",
        is_heard,
    ),
    Attack(
        "a datagram",
        "import socket\ntry:\n    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    line.sendto(b'@name@\\n', ('127.0.0.1', @port@))\nexcept OSError:\n    pass",
        is_heard,
    ),
    Attack(
        "a socket in the file system",
        "import socket\ntry:\n    line = socket.socket(socket.AF_UNIX)\n"
        "    line.connect('@base@/s')\n    line.sendall(b'@name@\\n')\nexcept OSError:\n    pass",
        is_heard,
    ),
    Attack(
        "an abstract socket",
        "import socket\ntry:\n    line = socket.socket(socket.AF_UNIX)\n"
        "    line.connect('\\0attack-@port@')\n    line.sendall(b'@name@\\n')\n"
        "except OSError:\n    pass",
        is_heard,
    ),
    Attack(
        "a file descriptor that was passed on",
        "import os\nfor number in range(3, 256):\n    try:\n"
        "        if os.readlink(f'/proc/self/fd/{number}').startswith('@base@'):\n"
        "            print('GO' 'T @name@')\n    except OSError:\n        pass",
        tells,
    ),
]
