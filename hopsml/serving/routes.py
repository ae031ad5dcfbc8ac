"""Which version answers a request, and how a server goes from one set of versions to the next; pure.

A server is told a ``Route``: the versions that it holds, which of them answers by default, and the share of requests
that a canary answers instead. It loads what it lacks beside what it has, turns over in one step when all of it is
loaded, and lets go of an earlier version when the last request that is in it has been answered. A version that cannot
be loaded changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopsml import suggestions


@dataclass(frozen=True)
class Route:
    """``default`` answers requests that name no version, but for a share of 0 to 1 of them, which ``canary`` answers.

    ``labels``: further names of versions that are served; "stable" and "canary" are always there where there is one.
    """

    number: int  # of the order in which routes were asked for
    default: int
    canary: int | None = None
    share: float = 0.0
    labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[int, ...]:
        """What has to be loaded."""
        return (self.default,) if self.canary in (None, self.default) else (self.default, int(self.canary or 0))

    def version_of(self, label: str) -> int | None:
        """The version with this label; None where there is none."""
        own = {"stable": self.default} if self.canary is None else {"stable": self.default, "canary": self.canary}
        return {**{name: one for name, one in self.labels.items() if one in self.versions}, **own}.get(label)


@dataclass(frozen=True)
class Load:
    """Load this version and try it out; then say ``loaded`` or ``failed``."""

    version: int


@dataclass(frozen=True)
class Unload:
    """Let go of this version: nothing is in it."""

    version: int


@dataclass(frozen=True)
class Turned:
    """The route with this number is followed from now on."""

    number: int


@dataclass(frozen=True)
class RouteRefused:
    """The route with this number cannot be followed, for this reason; the one before it stays."""

    number: int
    reason: str


RouteAction = Load | Unload | Turned | RouteRefused


class NoSuchVersion(LookupError):
    """No version answers to this number or label, or none is loaded yet; the text says which there are."""


class Router:
    """The state of one server's versions. Methods that return actions change it; whoever calls carries them out."""

    def __init__(self) -> None:
        self.route: Route | None = None  # that is followed
        self._next: Route | None = None  # whose versions are being loaded
        self._loaded: set[int] = set()
        self._loading: set[int] = set()
        self._in_flight: dict[int, int] = {}
        self._asked = 0  # requests that named no version, since the route is followed

    @property
    def versions(self) -> dict[int, str]:
        """Version -> "LOADING", "AVAILABLE" or "UNLOADING", by version."""
        kept = self.route.versions if self.route else ()
        held = {one: "AVAILABLE" if one in kept else "UNLOADING" for one in self._loaded}
        coming = self._next.versions if self._next else ()
        states = {**dict.fromkeys(self._loading, "LOADING"), **held}
        states |= {one: "LOADING" for one in coming if states.get(one) == "UNLOADING"}
        return dict(sorted(states.items()))

    def ask(self, route: Route) -> list[RouteAction]:
        """Go over to a route; one that was asked for before and is not followed yet is given up."""
        given_up = self._next
        self._next = route
        actions: list[RouteAction] = []
        if given_up is not None:
            actions.append(RouteRefused(given_up.number, f"route {route.number} was asked for meanwhile"))
        missing = [one for one in route.versions if one not in self._loaded | self._loading]
        self._loading |= set(missing)
        return [*actions, *(Load(one) for one in missing), *self._turn()]

    def loaded(self, version: int) -> list[RouteAction]:
        """A version is there, and has answered a first call."""
        self._loading.discard(version)
        self._loaded.add(version)
        return self._turn()

    def failed(self, version: int, reason: str) -> list[RouteAction]:
        """A version cannot be loaded."""
        self._loading.discard(version)
        if self._next is None or version not in self._next.versions:
            return self._let_go()
        number, self._next = self._next.number, None
        return [RouteRefused(number, reason), *self._let_go()]

    def choose(self, version: int | None = None, label: str | None = None) -> int:
        """The version that answers a request; NoSuchVersion where none does."""
        if self.route is None:
            raise NoSuchVersion("no version is loaded yet")
        if label is not None:
            found = self.route.version_of(label)
            if found is None:
                known = [one for one in ("stable", "canary", *self.route.labels) if self.route.version_of(one)]
                raise NoSuchVersion(f"no version has the label {label!r}; {suggestions.instead(label, known, '')}")
            return found
        if version is not None:
            if version not in self.route.versions:
                served = ", ".join(map(str, self.route.versions))
                raise NoSuchVersion(f"version {version} is not served; there are: {served}")
            return version
        return self._share()

    def _share(self) -> int:
        """By a share of 0.1 each tenth request goes to the canary: exactly, and spread evenly."""
        assert self.route is not None
        if self.route.canary is None:
            return self.route.default
        self._asked += 1
        before, after = (int(count * self.route.share + 1e-9) for count in (self._asked - 1, self._asked))
        return self.route.canary if after > before else self.route.default

    def began(self, version: int) -> None:
        """A request is in this version."""
        self._in_flight[version] = self._in_flight.get(version, 0) + 1

    def ended(self, version: int) -> list[RouteAction]:
        """A request that was in this version has been answered."""
        self._in_flight[version] -= 1
        if self._in_flight[version]:
            return []
        del self._in_flight[version]
        return self._let_go()

    def _turn(self) -> list[RouteAction]:
        if self._next is None or not set(self._next.versions) <= self._loaded:
            return self._let_go()
        self.route, self._next, self._asked = self._next, None, 0
        return [Turned(self.route.number), *self._let_go()]

    def _let_go(self) -> list[RouteAction]:
        """What neither the route needs, nor the next one, nor a request."""
        needed = {one for route in (self.route, self._next) if route for one in route.versions} | set(self._in_flight)
        gone = sorted(self._loaded - needed)
        self._loaded -= set(gone)
        return [Unload(one) for one in gone]
