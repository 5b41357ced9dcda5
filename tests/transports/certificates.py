"""Certificates for tests of TLS, made by the openssl command, or the test is skipped."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def make(folder: Path, name: str) -> Path:
    """A certificate with its key, in one file, for this host and signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl command")
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    command = (
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 "
        f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1,DNS:localhost "
        f"-keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True, timeout=30)
    both = folder / f"{name}.pem"
    both.write_text(key.read_text() + certificate.read_text())
    return both


def server(own: Path, *, believed: Path | None = None) -> ssl.SSLContext:
    """For who listens; with `believed`, peers must show that certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own)
    if believed is not None:
        context.load_verify_locations(believed)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client(believed: Path, *, own: Path | None = None) -> ssl.SSLContext:
    """For who dials."""
    context = ssl.create_default_context(cafile=str(believed))
    if own is not None:
        context.load_cert_chain(own)
    return context
