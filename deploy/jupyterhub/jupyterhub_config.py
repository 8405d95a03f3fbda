"""The hub of a class. `make hub` copies this file into its folder and writes settings.json there.

Change nothing in the copy: own settings go into own_config.py beside it, which is read last.
"""

import csv
import json
import os
import sys
from pathlib import Path
from urllib.parse import urlencode

import bcrypt
from jupyterhub.handlers import LoginHandler
from nativeauthenticator import NativeAuthenticator
from nativeauthenticator.orm import UserInfo

HUB = Path(__file__).resolve().parent
STATE = HUB / "state"
SETTINGS = json.loads((HUB / "settings.json").read_text(encoding="utf-8"))
WAY, PORT, ADMIN = SETTINGS["way"], SETTINGS["port"], SETTINGS["admin"]
IDLE_SECONDS = 60 * SETTINGS["idle_minutes"]
REPORT_SECONDS = min(300, IDLE_SECONDS // 4)  # between two reports of activity
USED = 1e9  # bytes of a server in which a chapter trains: docs/class-server.md

c = get_config()  # noqa: F821, from the loader of this file
os.umask(0o077)  # the hub's files, and those of servers without systemd, are for their owner alone


def column(table, name):
    """Return a column of a table by user name; it is read again, so that new students may come."""
    with (HUB / table).open(encoding="utf-8", newline="") as file:
        return {row["username"]: row[name] for row in csv.DictReader(file)}


# ------------------------------------------------------------------------------------- who may come


class ClassAuthenticator(NativeAuthenticator):
    """Know the class by accounts.csv, and a student's first password by passwords.csv."""

    def get_user(self, username):
        found = super().get_user(username)
        if found is None and (password := column("passwords.csv", "password").get(username)):
            hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt())
            found = UserInfo(username=username, password=hashed, is_authorized=True)
            self.db.add(found)
            self.db.commit()
        return found

    def get_handlers(self, app):
        # The login page of NativeAuthenticator 1.3.0 fails with JupyterHub 6; the hub's own works.
        others = [handler for handler in super().get_handlers(app) if handler[0] != "/login"]
        return [("/login", LoginHandler), *others]

    def check_allowed(self, username, authentication=None):
        # A name that was signed up and approved must not start a server as the system user of
        # that name (root, for example): `make hub` has to make the account first.
        return username == ADMIN or username in column("accounts.csv", "home")


c.JupyterHub.authenticator_class = ClassAuthenticator
c.Authenticator.any_allow_config = True  # check_allowed above decides
# An admin adds passwords and stops servers. Nobody may open a student's server: `admin_access`
# stays at its default, False.
c.Authenticator.admin_users = {ADMIN}
c.Authenticator.username_pattern = r"[a-z][a-z0-9-]{0,19}"
c.NativeAuthenticator.enable_signup = SETTINGS["sign_up"]
c.NativeAuthenticator.open_signup = False  # each sign-up waits for the admin at /hub/authorize
if SETTINGS["sign_up"]:
    sign_up = 'Without an account: <a href="signup">sign up</a>, and wait for your instructor.'
    c.JupyterHub.template_vars = {"announcement_login": sign_up}
c.NativeAuthenticator.minimum_password_length = 10
c.NativeAuthenticator.check_common_password = True
c.NativeAuthenticator.allowed_failed_logins = 10  # guessing takes years
c.NativeAuthenticator.seconds_before_next_try = 60

# --------------------------------------------------------------------------------- where it listens

# Plain HTTP on the loopback: passwords must not cross a network like this. A web server on the same
# machine adds TLS. With Caddy, which gets its certificate by itself, /etc/caddy/Caddyfile is
#     hub.example.org {
#         reverse_proxy 127.0.0.1:8000
#     }
# Without one, write into own_config.py: c.JupyterHub.bind_url = "https://:443" and the paths
# c.JupyterHub.ssl_key and c.JupyterHub.ssl_cert.
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{PORT + 1}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{PORT + 2}"
c.ConfigurableHTTPProxy.command = [
    str(HUB / "proxy" / "node_modules" / ".bin" / "configurable-http-proxy")
]
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")

# STATE has mode 700. The token of the proxy is made at each start and only in memory.
c.JupyterHub.db_url = f"sqlite:///{STATE / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.JupyterHub.pid_file = str(STATE / "hub.pid")

# ------------------------------------------------------------------------------- a student's server

c.Spawner.cmd = [str(HUB / "course" / ".venv" / "bin" / "jupyterhub-singleuser")]
c.Spawner.env_keep = ["LANG", "LC_ALL"]  # nothing else of root's environment
c.Spawner.environment = {
    "PATH": f"{HUB / 'course' / '.venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",  # with more threads, students compete for the cores and all wait
    "JUPYTERHUB_ACTIVITY_INTERVAL": str(REPORT_SECONDS),
    "HF_HUB_OFFLINE": "1",  # no chapter needs a network
    "GIT_CONFIG_SYSTEM": str(HUB / "gitconfig"),  # git refuses a repository of another owner
}
c.Spawner.start_timeout = 120  # when all come at once, each start waits for the others
c.Spawner.http_timeout = 120
c.Spawner.args = [
    f"--MappingKernelManager.cull_idle_timeout={IDLE_SECONDS}",
    f"--MappingKernelManager.cull_interval={REPORT_SECONDS}",
    "--MappingKernelManager.cull_connected=True",  # a forgotten tab keeps no memory
]
# Each visit of the home page brings new notebooks; a file that the student changed stays.
notebooks = {
    "repo": (HUB / "handout.git").as_uri(),
    "branch": "main",
    "targetpath": "attention",
    "urlpath": f"lab/tree/attention/{SETTINGS['first']}",
}
c.Spawner.default_url = f"/git-pull?{urlencode(notebooks)}"

if WAY == "systemd":
    c.JupyterHub.spawner_class = "systemdspawner.SystemdSpawner"
    c.Spawner.mem_limit = SETTINGS["memory"]
    c.Spawner.cpu_limit = 2.0
    c.SystemdSpawner.isolate_tmp = True
    c.SystemdSpawner.isolate_devices = True
    c.SystemdSpawner.disable_user_sudo = True
    c.SystemdSpawner.default_shell = "/bin/bash"
    c.SystemdSpawner.unit_extra_properties = {
        "UMask": "0077",
        "TasksMax": "300",
        "ProtectProc": "invisible",  # other students' processes
        "MemorySwapMax": "0",
    }
    c.JupyterHub.cleanup_servers = False  # they outlive a new start of the hub
elif WAY == "local":
    c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
    # In the common /tmp, another student could prepare the folder of torch.compile.
    c.Spawner.environment["TORCHINDUCTOR_CACHE_DIR"] = lambda spawner: os.path.expanduser(
        f"~{spawner.user.name}/.cache/torchinductor"
    )
else:
    c.JupyterHub.spawner_class = "jupyterhub.spawner.SimpleLocalProcessSpawner"
    c.SimpleLocalProcessSpawner.home_dir_template = str(HUB / "homes" / "{username}")
    if os.geteuid() == 0:
        c.Spawner.args += ["--allow-root"]
if WAY != "trial":
    # Kernels talk over sockets in the home: on a TCP port, every user of the machine could read the
    # outputs. In a trial, paths may be too long for sockets, and there is nobody else.
    c.Spawner.args += ["--KernelManager.transport=ipc"]

# --------------------------------------------------------------------------------- how many at once

memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
c.JupyterHub.active_server_limit = max(1, int(0.9 * memory / USED))
# A start takes a core for two seconds: half a minute when so many come at once, and more are asked
# to try again.
c.JupyterHub.concurrent_spawn_limit = 10 * (os.cpu_count() or 1)
c.JupyterHub.last_activity_interval = REPORT_SECONDS
c.JupyterHub.load_roles = [
    {
        "name": "cull",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["cull"],
    }
]
culler = [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={IDLE_SECONDS}"]
c.JupyterHub.services = [{"name": "cull", "command": culler}]

if (HUB / "own_config.py").exists():
    load_subconfig(str(HUB / "own_config.py"))  # noqa: F821, from the loader of this file
