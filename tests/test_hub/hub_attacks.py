"""What a student might try on the class's server, as code for the student's own kernel.

Each attack is a piece of code that raises an error if the hub holds. It knows what any student can
find out: the folders, the names of the others, and all ports that are open.
"""

from __future__ import annotations

# Runs first. `http` raises for every answer but success, and follows no redirection to the login.
TOOLS = '''
import glob, http.client, json, os, pathlib, re, signal, socket, subprocess, tempfile

HUB, OTHER, HOME, PORT, COPY = {hub!r}, {other!r}, {home!r}, {port}, {copy!r}
API = int(re.search(r":(\\d+)/hub/api", os.environ["JUPYTERHUB_API_URL"])[1])
OWN = os.environ["JUPYTERHUB_API_TOKEN"]
ME, VICTIM = os.environ["JUPYTERHUB_USER"], os.stat(HOME).st_uid

class Held(Exception):
    """The attack failed because the hub held."""

def web(method, port, path, token="", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    headers = {{"Authorization": "token " + token}} if token else {{}}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    try:
        answer = connection.getresponse()
    except (TimeoutError, http.client.HTTPException) as error:
        raise Held("no HTTP") from None
    if answer.status >= 300:
        raise Held(answer.status)
    return answer.read()

def read(path):
    with open(path, "rb") as file:
        return file.read(100)

def first(what, *paths):
    """Do it with the first path that allows it."""
    paths = [path for path in paths if not path.startswith(str(pathlib.Path.home()))]
    for path in paths:
        try:
            return what(path)
        except OSError as error:
            last = error
    raise last if paths else Held("nothing there")

def ports():
    """The ports on which programs of the other student listen."""
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    there = [row for row in rows if row[3] == "0A" and int(row[7]) == VICTIM]
    return sorted({{int(row[1].split(":")[1], 16) for row in there}})

def anywhere(method, path, **more):
    """Ask all ports of the other student, of which one is the server's."""
    answers = []
    for port in ports():
        try:
            return web(method, port, f"/user/{{OTHER}}/{{path}}", **more)
        except Held as error:
            answers.append(str(error))
    assert "403" in answers, "BROKEN: no server"
    raise Held(*answers)

def others(name):
    return [f"/proc/{{pid}}/{{name}}" for pid in os.listdir("/proc") if pid.isdigit()
            and os.stat(f"/proc/{{pid}}").st_uid in (0, VICTIM)]

def append(path):
    with open(path, "a") as file:
        file.write("# changed")
'''

# What is tried, and the code that does it.
ATTACKS = {
    "read the hub's database": 'read(f"{HUB}/state/jupyterhub.sqlite")',
    "read the hub's cookie secret": 'read(f"{HUB}/state/cookie_secret")',
    "list the hub's state": 'os.listdir(f"{HUB}/state")',
    "read accounts.csv": 'read(f"{HUB}/accounts.csv")',
    "read passwords.csv": 'read(f"{HUB}/passwords.csv")',
    "change the hub's settings": 'append(f"{HUB}/settings.json")',
    "change the hub's configuration": 'append(f"{HUB}/jupyterhub_config.py")',
    "add a configuration of its own": 'append(f"{HUB}/own_config.py")',
    "change utils for all": 'append(f"{HUB}/course/utils/shapes.py")',
    "add a module for all": 'append(f"{HUB}/course/sitecustomize.py")',
    "change Python for all": 'first(append, *glob.glob(f"{HUB}/course/.venv/bin/*"))',
    "add a package for all": (
        'first(append, *(p + "/x.pth" for p in glob.glob(f"{HUB}/course/.venv/lib/*/*")))'
    ),
    "change the proxy": 'first(append, *glob.glob(f"{HUB}/proxy/**/*.js", recursive=True)[:99])',
    "change the handed-out notebooks": 'first(append, f"{HUB}/handout.git/HEAD")',
    "push to the handed-out notebooks": (
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    git = ['git', '-c', 'user.name=x', '-c', 'user.email=x@x', '-C', folder]\n"
        "    for words in (['clone', '-q', f'{HUB}/handout.git', '.'], "
        "['commit', '-q', '--allow-empty', '-m', 'x'], ['push', 'origin', 'HEAD']):\n"
        "        subprocess.run([*git, *words], check=True, capture_output=True)"
    ),
    "add a hook to the repository": 'append(f"{HUB}/handout.git/hooks/post-update")',
    "read the instructor's solutions": 'os.listdir(f"{COPY}/notebooks/solutions")',
    "find solutions in the students' copy": (
        'assert subprocess.run(["grep", "-rlE", "BEGIN SOLUTION", "--include=*.ipynb", '
        'f"{HUB}/course/notebooks"], capture_output=True).stdout, "none"'
    ),
    "list another home": "os.listdir(HOME)",
    "read another's notebook": ('read(f"{HOME}/attention/notebooks/exercises/03_exercises.ipynb")'),
    "read another's kernel connection": (
        'first(read, *glob.glob(f"{HOME}/.local/share/jupyter/runtime/*"), '
        'f"{HOME}/.local/share/jupyter/runtime")'
    ),
    "read others' files in /tmp, /dev/shm, /run/user": (
        'first(read, *(p for d in ("/tmp/*", "/tmp/*/*", "/dev/shm/*", "/run/user/*/*") '
        "for p in glob.glob(d) if os.path.isfile(p) and os.stat(p).st_uid == VICTIM))"
    ),
    # torch.compile runs what it finds there, and the default is a known name in /tmp.
    "prepare the compiled code of others": (
        "import torch._inductor.runtime.cache_dir_utils as used\n"
        "folder = pathlib.Path(used.cache_dir())\n"
        "assert not folder.is_relative_to(pathlib.Path.home()), 'it is in the home'"
    ),
    "read others' environment": 'first(read, *others("environ"))',
    "read others' memory": 'first(read, *others("mem"))',
    "read others' open files": 'first(os.listdir, *others("fd"))',
    "stop others' processes": (
        'first(lambda p: os.kill(int(p.split("/")[2]), signal.SIGCONT), *others("stat"))'
    ),
    "sudo": 'subprocess.run(["sudo", "-n", "true"], check=True, capture_output=True)',
    "su": 'subprocess.run(["su", "-c", "true"], check=True, capture_output=True, input=b"root")',
    "become root": "os.setuid(0)",
    "ask another's server without a token": "anywhere('GET', 'api/contents')",
    "start a kernel on another's server": "anywhere('POST', 'api/kernels', body={'name': ''})",
    "ask another's server with the own token": "anywhere('GET', 'api/contents', token=OWN)",
    "ask another's server through the proxy": (
        "web('GET', PORT, f'/user/{OTHER}/api/contents', OWN)"
    ),
    # The other's kernel prints while this listens. A kernel has one port, for its own subprocesses.
    "listen to another's kernel": (
        "import zmq\n"
        "with zmq.Context() as context, context.socket(zmq.SUB) as listener:\n"
        "    listener.linger = 0\n"
        "    listener.subscribe(b'')\n"
        "    for port in ports():\n"
        "        listener.connect(f'tcp://127.0.0.1:{port}')\n"
        "    assert listener.poll(4000), 'nothing heard'"
    ),
    "read the proxy's routes": "web('GET', PORT + 1, '/api/routes')",
    "read the proxy's routes with the own token": "web('GET', PORT + 1, '/api/routes', OWN)",
    "redirect another's server": (
        "web('POST', PORT + 1, f'/api/routes/user/{OTHER}', OWN, "
        "{'target': 'http://127.0.0.1:1', 'user': OTHER})"
    ),
    "list the users": "web('GET', API, '/hub/api/users', OWN)",
    "read another user": "web('GET', API, f'/hub/api/users/{OTHER}', OWN)",
    "stop another's server": "web('DELETE', API, f'/hub/api/users/{OTHER}/server', OWN)",
    "start another's server": "web('POST', API, f'/hub/api/users/{OTHER}/server', OWN)",
    "make a token for another": "web('POST', API, f'/hub/api/users/{OTHER}/tokens', OWN, {})",
    "become an admin": "web('PATCH', API, f'/hub/api/users/{ME}', OWN, {'admin': True})",
    "add a user": "web('POST', API, '/hub/api/users/root', OWN)",
    "delete another": "web('DELETE', API, f'/hub/api/users/{OTHER}', OWN)",
    "share another's server with oneself": (
        "web('POST', API, f'/hub/api/shares/{OTHER}/', OWN, {'user': ME})"
    ),
    "shut the hub down": "web('POST', API, '/hub/api/shutdown', OWN)",
    "read the hub's services": "web('GET', API, '/hub/api/services', OWN)",
    "read the proxy by the hub": "web('GET', API, '/hub/api/proxy', OWN)",
}

# Links that shall fool `make collect` and `make give-back`: from a home to what root can read or
# write. The student's own work stays beside them.
LINKS = """
here = pathlib.Path.home() / "attention/notebooks/exercises"
for name, target in (
    ("04", f"{HOME}/attention/notebooks/exercises/03_exercises.ipynb"),
    ("05", f"{HUB}/passwords.csv"),
    ("06", "/etc/shadow"),
):
    path = here / f"{name}_exercises.ipynb"
    path.unlink()
    path.symlink_to(target)
(here / "07_exercises.ipynb").unlink()
os.mkfifo(here / "07_exercises.ipynb")
(pathlib.Path.home() / "feedback").symlink_to(HOME)
"""


def tools(hub: str, other: str, home: str, port: int, copy: str) -> str:
    """Return the code that runs before the attacks.

    Args:
        hub: its folder.
        other: the username of another student.
        home: of that student.
        port: of the proxy.
        copy: the instructor's folder of the course.
    """
    return TOOLS.format(hub=hub, other=other, home=home, port=port, copy=copy)


HELD = "Held, PermissionError, FileNotFoundError, AssertionError, subprocess.CalledProcessError"


def tried(code: str) -> str:
    """Return code that tries an attack and prints "held" and why, or what else happened."""
    inner = "".join(f"    {line}\n" for line in code.splitlines())
    return (
        f"try:\n{inner}except ({HELD}) as error:\n"
        "    print('held:', type(error).__name__, str(error)[:80])\n"
        "except BaseException as error:\n    print('BROKEN:', repr(error)[:200])\n"
        "else:\n    print('DONE')"
    )
