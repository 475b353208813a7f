"""Headless Chromium over its DevTools protocol: open, click, read, photograph."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 20  # for anything asked of the browser


class Page:
    """One tab. `problems` gathers console errors, exceptions and requests to any network."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket, self._numbers = socket, itertools.count(1)
        self._answers: dict[int, asyncio.Future] = {}
        self.problems: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            else:
                self._note(event["method"], event["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(json.dumps(params["entry"]))
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog opened: {params['message']}")
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:")):
                self.problems.append(f"a request to {url}")

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        found = await asyncio.wait_for(answer, SECONDS)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    async def resize(self, width: int, height: int = 900) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def open(self, path: pathlib.Path, fragment: str = "") -> None:
        await self.send("Page.navigate", url=path.resolve().as_uri() + fragment)
        await self.wait("document.querySelector('#view h1')")

    async def evaluate(self, expression: str) -> Any:
        result = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def wait(self, condition: str) -> None:
        async def hold() -> None:
            while not await self.evaluate(f"Boolean({condition})"):
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(hold(), SECONDS)
        except TimeoutError:
            raise AssertionError(f"never true: {condition}; {self.problems}") from None

    async def click(self, selector: str) -> None:
        """A real click in the middle of what is seen there."""
        at = await self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', inline: 'nearest'});"
            " const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        common = {"x": at[0], "y": at[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, **common)

    async def text(self, selector: str) -> str:
        return await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    async def photograph(self, path: pathlib.Path, whole: bool = True) -> None:
        image = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(image["data"]))


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            "--headless=new",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await asyncio.wait_for(_port(pathlib.Path(profile)), SECONDS)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                address = tabs[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    page = Page(socket)
                    listening = asyncio.create_task(page.listen())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.send(f"{domain}.enable")
                    yield page
                    listening.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _port(profile: pathlib.Path) -> int:
    said = profile / "DevToolsActivePort"
    while not (said.exists() and said.read_text().strip()):
        await asyncio.sleep(0.05)
    return int(said.read_text().split()[0])
