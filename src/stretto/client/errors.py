"""What may go wrong between a client and its service, beside what is wrong with a request."""

from stretto.errors import InputError, StrettoError


class ServiceError(StrettoError):
    """The service did not answer, or did not do what was asked."""

    exit_status = 69  # EX_UNAVAILABLE of sysexits.h: seldom that of a job


class Refused(InputError):
    """The token is none, or its role does not allow what was asked."""


class Untrusted(InputError):
    """The service's certificate is not of an authority that the client trusts, or not of its name."""


class NothingFollows(Exception):
    """What is followed is over."""
