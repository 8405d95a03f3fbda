"""Attacks that harm others: the next student, the grader, the machine, the instructor."""

from __future__ import annotations

from attacks.attack import (
    Attack,
    changes_the_decoy,
    changes_the_gradebook,
    kills,
    leaves_a_process,
    leaves_a_trace,
    leaves_files,
    tells,
)

# Where an attacker looks for the gradebook: beside the work, above it, among temporary files.
GRADEBOOK = (
    "import glob, os, sqlite3\nfound = ['@base@/decoy/gradebook.db',\n"
    "         *glob.glob('../gradebook.db'),\n"
    "         *glob.glob('../../gradebook.db'), *glob.glob('@base@/tmp/grade-*/**/gradebook.db', "
    "recursive=True)]\n"
)
ATTACKS = [
    Attack(
        "points written into the gradebook",
        f"{GRADEBOOK}for path in filter(os.path.exists, found):\n"
        "    with sqlite3.connect(path) as database:\n"
        "        for table, column in (('grade', 'score'), ('grade', 'manual_score')):\n"
        "            try:\n                database.execute(f'update {table} set {column} = 14')\n"
        "            except sqlite3.Error:\n                pass",
        changes_the_gradebook,
    ),
    Attack(
        "data of the course overwritten",
        "import os\nfor folder, _, names in os.walk(@library@ + '/resources'):\n"
        "    for name in names + ['x.pt']:\n        try:\n"
        "            open(os.path.join(folder, name), 'ab').write(b'x')\n"
        "            print('GO' 'T @name@')\n        except OSError:\n            pass",
        tells,
    ),
    Attack(
        "a module put among those that the next student imports",
        "import os, sys\nfor place in [@library@, *sys.path]:\n    try:\n"
        "        if os.path.isdir(place) and os.path.abspath(place) != os.getcwd():\n"
        "            path = os.path.join(place, 'z_@port@.py')\n"
        "            open(path, 'w').write('')\n            os.remove(path)\n"
        "            print('GO' 'T @name@')\n    except OSError:\n        pass",
        tells,
    ),
    Attack(
        "a file in a place that stays",
        "for place in ('@base@/traces', '@base@/home', '@base@'):\n    try:\n"
        "        open(place + '/@name@', 'w').write('x')\n    except OSError:\n        pass",
        leaves_a_trace,
    ),
    Attack(
        "a folder in the results",
        "import os, pathlib\nfor place in pathlib.Path('@base@').glob('class-grades*'):\n"
        "    os.makedirs(place / '.unfinished-x', exist_ok=True)\n"
        "    for inner in place.iterdir():\n"
        "        if inner.is_dir():\n            os.makedirs(inner / 'grades.csv', exist_ok=True)\n"
        "            print('GO' 'T @name@')",
        tells,
    ),
    Attack(
        "a link where others write",
        "import os\nfor name in ('log.txt', '../log.txt', '../kernel.log', '../../log.txt'):\n"
        "    try:\n        if os.path.lexists(name):\n            os.remove(name)\n"
        "        os.symlink('@base@/decoy/@name@.txt', name)\n    except OSError:\n        pass",
        changes_the_decoy,
    ),
    Attack(
        "a file of the instructor overwritten",
        "try:\n    open('@base@/decoy/@name@.txt', 'w').write('yours')\nexcept OSError:\n    pass",
        changes_the_decoy,
    ),
    Attack(
        "code for the next start of Python at home",
        "import os, pathlib\nhome = pathlib.Path('@base@/home')\n"
        "try:\n    if home.exists():\n"
        "        for name in ('.ipython/profile_default/startup', '.config/matplotlib'):\n"
        "            (home / name).mkdir(parents=True, exist_ok=True)\n"
        "            (home / name / 'x.py').write_text('')\n            print('GO' 'T @name@')\n"
        "except OSError:\n    pass",
        tells,
    ),
    Attack(
        "another process killed",
        "import os, signal\ntry:\n    os.kill(@victim@, signal.SIGKILL)\nexcept OSError:\n    pass",
        kills,
    ),
    Attack(
        "another process found by its name and killed",
        "import glob, os, signal\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n    try:\n"
        "        said = open(path).read()\n        pid = int(path.split('/')[2])\n"
        "        if '@base@' in said and pid not in (os.getpid(), 1):\n"
        "            os.kill(pid, signal.SIGKILL)\n    except OSError:\n        pass",
        kills,
    ),
    Attack(
        "another process killed by a limit",
        "import resource\ntry:\n    resource.prlimit(@victim@, resource.RLIMIT_NOFILE, (3, 3))\n"
        "    print('GO' 'T @name@')\nexcept (OSError, ValueError):\n    pass",
        tells,
    ),
    Attack(
        "another process killed by its descriptor",
        "import os, signal\ntry:\n    one = os.pidfd_open(@victim@)\n"
        "    signal.pidfd_send_signal(one, signal.SIGKILL)\nexcept OSError:\n    pass",
        kills,
    ),
    Attack(
        "the grader killed",
        "import os, signal\nfor pid in {os.getppid(), *range(2, 2)}:\n    try:\n"
        "        if pid > 1:\n            os.kill(pid, signal.SIGKILL)\n"
        "    except OSError:\n        pass",
        kills,
        alone=True,
    ),
    Attack(
        "a process that survives",
        "import subprocess\nsubprocess.Popen(['tail', '-F', '@base@/@name@'], "
        "start_new_session=True)",
        leaves_a_process,
    ),
    Attack(
        "a process that is born at the end",
        "import atexit, subprocess\natexit.register(lambda: subprocess.Popen("
        "['tail', '-F', '@base@/@name@'], start_new_session=True))\n"
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: atexit._run_exitfuncs())",
        leaves_a_process,
    ),
    Attack(
        "a process with another parent",
        "import os\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        "        for n in range(3):\n            os.dup2(os.open(os.devnull, os.O_RDWR), n)\n"
        "        os.execvp('tail', ['tail', '-F', '@base@/@name@'])\n"
        "    os._exit(0)",
        leaves_a_process,
    ),
    Attack(
        "files in temporary folders",
        "import os\nmark = os.path.basename('@base@') + '-@name@'\n"
        "for place in ('/tmp', '/var/tmp', '/dev/shm'):\n    for n in range(3):\n        try:\n"
        "            open(f'{place}/{mark}-{n}', 'w').write('x' * 100_000)\n"
        "        except OSError:\n            pass",
        leaves_files,
    ),
    Attack(
        "memory of the old kind shared under a number",
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "here = libc.shmget(@port@, 4096, 0)\n"
        "if here >= 0:\n    print('GO' 'T @name@')",
        tells,
    ),
    Attack(
        "a lock on the gradebook",
        "import fcntl\ntry:\n    held = open('@base@/decoy/gradebook.db', 'r+b')\n"
        "    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    print('GO' 'T @name@')\n"
        "except OSError:\n    pass",
        tells,
    ),
    Attack(
        "a file system mounted",
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nos.makedirs('m', exist_ok=True)\n"
        "if os.fork() == 0:\n    here = os.path.abspath('m').encode()\n"
        "    if libc.unshare(0x00020000) == 0 == libc.mount(None, b'/', None, 0x44000, None):\n"
        "        if libc.mount(b'none', here, b'tmpfs', 0, None) == 0:\n"
        "            os.write(1, b'GO' b'T @name@\\n')\n    os._exit(0)\nos.wait()",
        tells,
        rights=True,
    ),
    Attack(
        "the name of the machine changed",
        "import ctypes, os\nif os.fork() == 0:\n    libc = ctypes.CDLL(None)\n"
        "    if libc.unshare(0x04000000) == 0 and libc.sethostname(b'mine', 4) == 0:\n"
        "        os.write(1, b'GO' b'T @name@\\n')\n    os._exit(0)\nos.wait()",
        tells,
        rights=True,
    ),
]
