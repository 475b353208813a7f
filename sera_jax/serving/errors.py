"""What can go wrong with policy servers, as the user is told of it: every message is one line."""


class PolicyServerError(RuntimeError):
    """A policy server failed."""


class ServerUnreachable(PolicyServerError):
    """No answer, or none that can be used, after all retries."""


class RequestRejected(PolicyServerError):
    """The request itself is wrong: asking again would not help."""


class UpdateRefused(PolicyServerError):
    """A server does not serve the weights that it was given."""


class ServersLost(PolicyServerError):
    """All servers are gone and did not come back in time: the run saves and stops."""
