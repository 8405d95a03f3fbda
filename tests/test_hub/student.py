"""A student of a hub: the requests that a browser sends, by the real protocols."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import requests
import websocket

from tools.course.notebook import Notebook, source

STEP = 0.5  # seconds between two questions whether a server has started
PROTOCOL = "5.4"  # of the messages to a kernel


class Student:
    """One student's browser.

    Args:
        address: of the hub, such as http://127.0.0.1:8000.
        username, password: of the account.
        name: as in the class list.
    """

    def __init__(self, address: str, username: str, password: str, name: str) -> None:
        self.address, self.username, self.name = address, username, name
        self._password = password
        self.browser = requests.Session()
        self._socket: websocket.WebSocket | None = None
        self._session = self.kernel = ""
        self.waited = 0  # answers "too many at once"

    @property
    def base(self) -> str:
        """The path of the student's server."""
        return f"/user/{self.username}/"

    def _token(self, path: str) -> str:
        """Return the cookie against requests from other pages, for a path of the hub."""
        for cookie in self.browser.cookies:
            if cookie.name == "_xsrf" and cookie.path == path:
                return cookie.value or ""
        return ""

    def ask(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send a request to the student's server.

        Args:
            method: of HTTP.
            path: within the server.
            more: arguments of `requests.request`.
        """
        headers = {"X-XSRFToken": self._token(self.base), "Referer": self.address + self.base}
        url = f"{self.address}{self.base}{path}"
        return self.browser.request(method, url, headers=headers, timeout=60, **more)

    def _asked(self, method: str, path: str, **more: Any) -> Any:
        answer = self.ask(method, path, **more)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def log_in(self) -> None:
        """Log in with the name and the password.

        Raises:
            PermissionError: the hub does not accept them.
        """
        login = f"{self.address}/hub/login"
        self.browser.get(login, timeout=60)
        given = {"username": self.username, "password": self._password}
        given["_xsrf"] = self._token("/hub/")
        answer = self.browser.post(login, given, timeout=60, allow_redirects=False)
        if answer.status_code != 302:
            raise PermissionError(f"{self.username} cannot log in: {answer.status_code}")

    def start(self, seconds: float) -> float:
        """Start the server, and return how many seconds that took.

        Args:
            seconds: in which it must answer.

        Raises:
            TimeoutError: it did not.
        """
        began = time.monotonic()
        started = False
        while time.monotonic() < began + seconds:
            if not started:
                answer = self.browser.get(f"{self.address}/hub/spawn", timeout=60)
                started = answer.status_code != 429
                self.waited += not started
            answer = self.ask("GET", "lab")  # through the login of the server, which sets cookies
            if answer.status_code == 200 and answer.url.endswith(f"{self.base}lab"):
                return time.monotonic() - began
            time.sleep(STEP if started else 2 * STEP)
        raise TimeoutError(f"{self.username}: no server in {seconds:g} s: {answer.status_code}")

    def pull(self, link: str) -> str:
        """Copy the notebooks as the page of nbgitpuller does, and return its last message.

        Args:
            link: the query of the hub's link.
        """
        query = f"git-pull/api?{link}"
        with self.ask("GET", query, stream=True) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith(b"data:")]
        return json.loads(lines[-1][5:])["phase"]

    def read(self, path: str) -> Notebook:
        """Return a notebook of the home."""
        return self._asked("GET", f"api/contents/{path}")["content"]

    def save(self, path: str, notebook: Notebook) -> None:
        content = {"type": "notebook", "format": "json", "content": notebook}
        self._asked("PUT", f"api/contents/{path}", json=content)

    def open(self, path: str) -> None:
        """Start the kernel of a notebook, and connect to it."""
        self.close()
        about = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        found = self._asked("POST", "api/sessions", json=about)
        self._session, self.kernel = found["id"], found["kernel"]["id"]
        cookies = {cookie.name: cookie.value for cookie in self.browser.cookies}
        of_server = self.browser.cookies.get_dict(path=self.base)
        pairs = (f"{name}={value}" for name, value in (cookies | of_server).items())
        self._socket = websocket.create_connection(
            f"ws{self.address[4:]}{self.base}api/kernels/{self.kernel}/channels",
            cookie="; ".join(pairs),
            origin=self.address,
            header={"X-XSRFToken": self._token(self.base)},
            timeout=120,
        )

    def close(self) -> None:
        """End the kernel, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.ask("DELETE", f"api/sessions/{self._session}")

    def run(self, code: str) -> str:
        """Run code in the kernel, and return what it prints.

        Raises:
            RuntimeError: the code raised an error.
        """
        assert self._socket is not None
        head = {"msg_id": uuid.uuid4().hex, "username": self.username, "session": self._session}
        head |= {"msg_type": "execute_request", "version": PROTOCOL}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {"header": head, "parent_header": {}, "metadata": {}, "content": content}
        self._socket.send(json.dumps({**message, "channel": "shell"}))
        printed = ""
        while True:
            got = json.loads(self._socket.recv())
            if got["parent_header"].get("msg_id") != head["msg_id"]:
                continue
            content = got["content"]
            if got["msg_type"] == "stream" and content["name"] == "stdout":
                printed += content["text"]
            elif got["msg_type"] == "error":
                raise RuntimeError(f"{content['ename']}: {content['evalue']}")
            elif got["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed

    def run_all(self, path: str) -> int:
        """Open a notebook, run all its code cells, and return how many."""
        cells = [cell for cell in self.read(path)["cells"] if cell["cell_type"] == "code"]
        self.open(path)
        for cell in cells:
            self.run(source(cell))
        return len(cells)
