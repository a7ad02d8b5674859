#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""browser.py PAGE.html [WIDE.png PHONE.png]: opens the page of `script/demo --web` in
headless Chromium, trains to the end, draws a digit, and prints what the page shows."""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time

FIELDS = ("epoch", "loss", "accuracy", "time", "error")
ONE = [(140, 40 + 20 * i) for i in range(11)]  # a digit 1 in the field of 280 pixels


class Browser:
    """Chromium, spoken to through a pair of pipes; messages end with a null byte."""

    def __init__(self, profile):
        there, self.to = os.pipe()
        self.back, here = os.pipe()

        def pipes():  # Chromium reads 3 and writes 4
            a, b = os.dup(there), os.dup(here)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(there)
        os.close(here)
        self.seen, self.count, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.seen:
                part = os.read(self.back, 1 << 16)
                if not part:
                    sys.exit("chromium has ended")
                self.seen += part
            text, self.seen = self.seen.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.count:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def run(self, script):
        """The value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=script,
                         returnByValue=True)["result"].get("value")

    def wait(self, script, seconds):
        end = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end:
                sys.exit(f"waited {seconds} s in vain for: {script}")
            time.sleep(0.2)

    def draw(self, field, points):
        box = json.loads(self.run(f"JSON.stringify({field}.getBoundingClientRect())"))
        for i, (x, y) in enumerate(points):
            kind = "mousePressed" if i == 0 else "mouseMoved"
            self.mouse(kind, box["x"] + x * box["width"] / 280,
                       box["y"] + y * box["height"] / 280)
        self.mouse("mouseReleased", box["x"], box["y"])

    def mouse(self, kind, x, y):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                  buttons=1, clickCount=1)

    def show(self, width, theme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=760,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": theme}])

    def picture(self, path):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))


def main(page, *pictures):
    with tempfile.TemporaryDirectory() as profile:
        b = Browser(profile)
        try:
            b.show(960, "light")
            b.call("Page.navigate", url="file://" + os.path.abspath(page))
            b.wait("globalThis.train && !train.disabled || error.textContent", 60)
            b.run("train.click()")
            b.wait("train.disabled || error.textContent", 1500)
            b.draw("draw", ONE)
            for name in FIELDS:
                print(f"{name}: {b.run(f'{name}.textContent')}")
            best = ("[...bars.querySelectorAll('span')].map(s => parseFloat(s.textContent))"
                    ".reduce((best, x, i, all) => x > all[best] ? i : best, 0)")
            print(f"drawn: {b.run(best)}")
            for look, picture in zip(((960, "light"), (390, "dark")), pictures):
                b.show(*look)
                b.picture(picture)
        finally:
            b.process.terminate()
            b.process.wait()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
