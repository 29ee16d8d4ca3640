"""Certificates: how the processes of a run recognise each other with ``tls=``.

A run has one key and one certificate, which only its own processes know: each end of a connection shows that it has
both. They are made here with the package `cryptography`, or read from the user's files.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from riverrun.errors import PlanError
from riverrun.runtime.network.connection import Credentials

NAME = "riverrun"
_DAYS = 3650


def secured(tls: bool | tuple[str | Path, str | Path]) -> Credentials:
    """A token, and with `tls` a certificate: a new one, or the one in the user's files of a certificate and its key."""
    if not tls:
        return Credentials()
    if isinstance(tls, bool):
        certificate, key = _new_certificate()
        return Credentials(certificate=certificate, key=key, name=NAME)
    try:
        certificate, key = (Path(file).read_bytes() for file in tls)
    except (OSError, ValueError, TypeError) as error:
        raise PlanError(
            "spark.tls",
            f"cannot run with tls={tls!r}: {error}",
            hint="True, or a pair of files in PEM form: (certificate, key)",
        ) from error
    return Credentials(certificate=certificate, key=key, name=_name_of(certificate))


def _new_certificate() -> tuple[bytes, bytes]:
    x509, serialization, ec, hashes = _cryptography()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), secret


def _name_of(certificate: bytes) -> str:
    """The first name that a certificate is made out to."""
    x509, *_ = _cryptography()
    try:
        read = x509.load_pem_x509_certificate(certificate)
        names: list[str] = read.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value.get_values_for_type(x509.DNSName)
        return names[0]
    except (ValueError, IndexError, x509.ExtensionNotFound) as error:
        raise PlanError(
            "spark.tls",
            f"cannot use the certificate: {error}",
            hint="PEM form, with a DNS name as its subject alternative name, signed by itself",
        ) from error


def _cryptography() -> Any:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise PlanError(
            "spark.tls",
            f"cannot run with tls: cryptography cannot be imported ({error})",
            hint="pip install cryptography",
        ) from error
    return x509, serialization, ec, hashes
