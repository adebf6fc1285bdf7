"""A stand-in for `_ssl`: a component has neither a network nor TLS.

HTTP clients name the classes and constants of `ssl` when they are imported, and create a context when they are created.
These exist with OpenSSL's values; a connection is refused.
"""

from __future__ import annotations

from typing import Any

from ._older import Never

# Clients warn about older versions.
OPENSSL_VERSION = "OpenSSL 3.0.0 by its names only: a component has no TLS"
OPENSSL_VERSION_INFO = _OPENSSL_API_VERSION = (3, 0, 0, 0, 0)
OPENSSL_VERSION_NUMBER = 0x30000000
_DEFAULT_CIPHERS = ""

HAS_ALPN = HAS_ECDH = HAS_NPN = HAS_PHA = HAS_PSK = HAS_PSK_TLS13 = HAS_SNI = HAS_TLS_UNIQUE = False
HAS_SSLv2 = HAS_SSLv3 = HAS_TLSv1 = HAS_TLSv1_1 = HAS_TLSv1_2 = HAS_TLSv1_3 = False

CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED = range(3)
ENCODING_PEM, ENCODING_DER = 1, 2
HOSTFLAG_NEVER_CHECK_SUBJECT = 32
PROTOCOL_TLS, PROTOCOL_TLSv1, PROTOCOL_TLSv1_1, PROTOCOL_TLSv1_2 = 2, 3, 4, 5
PROTOCOL_SSLv23, PROTOCOL_TLS_CLIENT, PROTOCOL_TLS_SERVER = 2, 16, 17
PROTO_MINIMUM_SUPPORTED, PROTO_MAXIMUM_SUPPORTED = -2, -1
PROTO_SSLv3, PROTO_TLSv1, PROTO_TLSv1_1, PROTO_TLSv1_2, PROTO_TLSv1_3 = range(0x300, 0x305)

OP_ALL = 0x80000050
OP_CIPHER_SERVER_PREFERENCE = 1 << 22
OP_ENABLE_KTLS = 1 << 3
OP_ENABLE_MIDDLEBOX_COMPAT = 1 << 20
OP_IGNORE_UNEXPECTED_EOF = 1 << 7
OP_LEGACY_SERVER_CONNECT = 1 << 2
OP_NO_COMPRESSION = 1 << 17
OP_NO_RENEGOTIATION = 1 << 30
OP_NO_SSLv2 = OP_SINGLE_DH_USE = OP_SINGLE_ECDH_USE = 0
OP_NO_SSLv3 = 1 << 25
OP_NO_TICKET = 1 << 14
OP_NO_TLSv1 = 1 << 26
OP_NO_TLSv1_1 = 1 << 28
OP_NO_TLSv1_2 = 1 << 27
OP_NO_TLSv1_3 = 1 << 29

SSL_ERROR_SSL, SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE, SSL_ERROR_WANT_X509_LOOKUP = 1, 2, 3, 4
SSL_ERROR_SYSCALL, SSL_ERROR_ZERO_RETURN, SSL_ERROR_WANT_CONNECT, SSL_ERROR_EOF = 5, 6, 7, 8
SSL_ERROR_INVALID_ERROR_CODE = 10
ALERT_DESCRIPTION_CLOSE_NOTIFY, ALERT_DESCRIPTION_HANDSHAKE_FAILURE = 0, 40

VERIFY_DEFAULT, VERIFY_CRL_CHECK_LEAF, VERIFY_CRL_CHECK_CHAIN = 0, 4, 12
VERIFY_X509_STRICT, VERIFY_ALLOW_PROXY_CERTS = 32, 64
VERIFY_X509_TRUSTED_FIRST, VERIFY_X509_PARTIAL_CHAIN = 1 << 15, 1 << 19


class SSLError(OSError):
    """An error of TLS."""


class SSLZeroReturnError(SSLError):
    pass


class SSLWantReadError(SSLError):
    pass


class SSLWantWriteError(SSLError):
    pass


class SSLSyscallError(SSLError):
    pass


class SSLEOFError(SSLError):
    pass


class SSLCertVerificationError(SSLError, ValueError):
    pass


def _refuse(*_: Any, **__: Any) -> Never:
    raise SSLError("a component has no TLS and no network; the host asks the model, and provides tools")


class _Setting:
    """An attribute of a context that is stored and not used."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __set_name__(self, _: type, name: str) -> None:
        self.name = name

    def __get__(self, context: Any, _: type | None = None) -> Any:
        return self if context is None else context.__dict__.get(self.name, self.value)

    def __set__(self, context: Any, value: Any) -> None:
        context.__dict__[self.name] = value


class _SSLContext:  # pyright: ignore[reportUnusedClass]  # the library's `ssl` derives from it
    def __new__(cls, protocol: int) -> Any:
        made = object.__new__(cls)
        is_client = protocol == PROTOCOL_TLS_CLIENT
        made.__dict__ |= {"protocol": protocol, "check_hostname": is_client}
        made.__dict__["verify_mode"] = CERT_REQUIRED if is_client else CERT_NONE
        return made

    protocol = _Setting(PROTOCOL_TLS)
    check_hostname = _Setting(False)
    verify_mode = _Setting(CERT_NONE)
    verify_flags = _Setting(VERIFY_X509_TRUSTED_FIRST)
    options = _Setting(OP_ALL)
    minimum_version = _Setting(PROTO_MINIMUM_SUPPORTED)
    maximum_version = _Setting(PROTO_MAXIMUM_SUPPORTED)
    keylog_filename = _Setting(None)
    post_handshake_auth = _Setting(False)
    sni_callback = _Setting(None)
    num_tickets = _Setting(2)
    security_level = _Setting(2)
    _host_flags = _Setting(0)
    _msg_callback = _Setting(None)

    def _take(self, *_: Any, **__: Any) -> None:
        """Does nothing: there are no connections."""

    load_cert_chain = load_dh_params = load_verify_locations = set_ciphers = set_default_verify_paths = _take
    set_ecdh_curve = _set_alpn_protocols = _set_npn_protocols = set_psk_client_callback = _take

    def get_ca_certs(self, binary_form: bool = False) -> list[Any]:
        return []

    def get_ciphers(self) -> list[Any]:
        return []

    def cert_store_stats(self) -> dict[str, int]:
        return {"crl": 0, "x509": 0, "x509_ca": 0}

    def _wrap_socket(self, *_: Any, **__: Any) -> Never:
        _refuse()

    _wrap_bio = _wrap_socket


class MemoryBIO:
    """A buffer for the bytes of a connection."""


class SSLSession:
    pass


class Certificate:
    pass


# Purposes of a certificate: the two that `ssl` names.
_PURPOSES = {
    "1.3.6.1.5.5.7.3.1": (129, "serverAuth", "TLS Web Server Authentication", "1.3.6.1.5.5.7.3.1"),
    "1.3.6.1.5.5.7.3.2": (130, "clientAuth", "TLS Web Client Authentication", "1.3.6.1.5.5.7.3.2"),
}


def txt2obj(txt: str, name: bool = False) -> tuple[int, str, str, str]:
    return _PURPOSES[txt] if txt in _PURPOSES else _refuse()


nid2obj = RAND_add = RAND_bytes = _refuse


def get_default_verify_paths() -> tuple[str, str, str, str]:
    """Returns variables and files for certificates, which do not exist."""
    return ("SSL_CERT_FILE", "/nowhere/cert.pem", "SSL_CERT_DIR", "/nowhere/certs")


def RAND_status() -> bool:
    return False
