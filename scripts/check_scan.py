"""Scan Terraform, the Dockerfile and the workflows with checkov; .checkov.yaml has the waivers and their reasons.

uv installs checkov into its own cache, not among the development packages, whose versions it would hold back. Where no
registry of packages answers, the scan says that it was skipped, and passes.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CHECKOV = "checkov==3.3.30"
CONFIGURATION = REPOSITORY / ".checkov.yaml"
SCANNED = ("terraform", "Dockerfile", ".github/workflows")
IGNORED = shutil.ignore_patterns(".terraform", "*.tfstate*", "*.auto.tfvars", "terraform.tfvars")
# An empty file for what was scanned last without a finding, named by its digest.
CACHE = REPOSITORY / ".cache" / "check_scan"
INSTALL_TIMEOUT_S = 120


def main() -> int:
    """Scan, print what was found, and return 0 if that is nothing."""
    ok, said = scan()
    print(said)
    return int(not ok)


def scan() -> tuple[bool, str]:
    """Scan what has changed since the last scan; return whether nothing was found, and what to print."""
    kept = CACHE / digest()
    if kept.is_file():
        return True, "checkov: nothing has changed since the last scan, which found nothing"
    if (reason := cannot_run()) is not None:
        line = "!" * 100
        return True, f"{line}\ncheckov: SKIPPED, nothing was scanned: {reason}\nRun `make scan` where it can.\n{line}"
    with tempfile.TemporaryDirectory() as folder:
        for name in SCANNED:
            copy(REPOSITORY / name, Path(folder) / name)
        # Without --skip-download it asks a service for links to its documentation.
        done = run("checkov", "--directory", folder, "--config-file", str(CONFIGURATION), "--skip-download")
    if done.returncode:
        return False, f"checkov: failed\n{done.stdout}{done.stderr}"
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    kept.touch()
    counts = [line for line in done.stdout.splitlines() if line.startswith("Passed checks")]
    return True, f"checkov: ok: {'; '.join(counts)}"


def cannot_run() -> str | None:
    """Return why checkov cannot be installed here; None if it is."""
    if uv() is None:
        return "uv is not installed"
    try:
        done = run("python", "-c", "import checkov", timeout_s=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no registry of packages delivered {CHECKOV} in {INSTALL_TIMEOUT_S} s"
    return None if done.returncode == 0 else f"uv could not install {CHECKOV}: {done.stderr.strip()[-400:]}"


def run(*command: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command beside checkov, which uv installs on first use."""
    command = (str(uv()), "tool", "run", "--from", CHECKOV, *command)
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=timeout_s)


def uv() -> str | None:
    """Return the path of the repository's uv, otherwise of the one on PATH."""
    own = REPOSITORY / ".tools" / "uv" / "bin" / "uv"
    return str(own) if own.is_file() else shutil.which("uv")


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, without what Terraform and a person left in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=IGNORED)
    else:
        shutil.copy(source, target)


def digest() -> str:
    """Return a digest of what is scanned, of the waivers, and of this script."""
    total = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        for source in SCANNED:
            copy(REPOSITORY / source, Path(folder) / source)
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            total.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    for path in (CONFIGURATION, Path(__file__)):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
