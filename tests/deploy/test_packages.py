"""The image's packages come from a registry that is not trusted: what differs from the lock is not installed."""

import base64
import hashlib
import http.server
import io
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix).parent / ".tools" / "uv" / "bin" / "uv"  # of a copy of the repository, too
ADDRESS = re.compile(r"https://[\w.]+/")
WHEEL = re.compile(r'/([\w.]+)-([\w.!+]+?)-([^/"]+)\.whl')
# As the Dockerfile has it.
SYNC = ("sync", "--frozen", "--no-dev", "--no-install-project", "--no-editable")
TIMEOUT_S = 120


def other_wheel(path):
    """Return a wheel of the name and the version that a path asks for, with code that nobody has locked."""
    name, version, tags = WHEEL.search(path).groups()
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}_stolen.py": "print('stolen')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    digests = {file: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for file, text in files.items()}
    record = [f"{file},sha256={digests[file].decode().rstrip('=')},{len(text)}" for file, text in files.items()]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": "\n".join([*record, f"{info}/RECORD,,\n"])}.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return content.getvalue()


class Registry(http.server.BaseHTTPRequestHandler):
    """Answers every request for a wheel with another one."""

    def do_GET(self):
        content = other_wheel(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def registry():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def installed(lock, folder):
    """Install what a lock says; return the exit code, what was said, and the modules that nobody has locked."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "uv.lock").write_text(lock)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "UV_NO_CACHE": "1", "UV_PYTHON": sys.executable}
    done = subprocess.run(
        [UV, *SYNC], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stderr, list(folder.glob(".venv/lib/*/site-packages/*_stolen.py"))


@pytest.mark.skipif(not UV.exists(), reason="needs uv in .tools")
def test_another_file_than_the_locked_one_is_not_installed(registry, tmp_path):
    lock = ADDRESS.sub(registry, (ROOT / "uv.lock").read_text())
    code, said, stolen = installed(lock, tmp_path)
    assert (code != 0, stolen) == (True, [])
    assert "Hash mismatch" in said


@pytest.mark.skipif(not UV.exists(), reason="needs uv in .tools")
def test_the_same_file_is_installed_if_the_lock_has_its_sum(registry, tmp_path):
    lines = ADDRESS.sub(registry, (ROOT / "uv.lock").read_text()).splitlines()
    for number, line in enumerate(lines):
        if WHEEL.search(line):
            digest = hashlib.sha256(other_wheel(line)).hexdigest()
            lines[number] = re.sub(r"sha256:\w+", f"sha256:{digest}", line)
    code, said, stolen = installed("\n".join(lines) + "\n", tmp_path)
    assert code == 0, said
    assert len(stolen) > 30
