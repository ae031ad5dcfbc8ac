"""Selection of the version that answers a request, and transitions between sets of versions. Pure.

A server receives a ``Route``: the versions it has to load, the default version, and the share of requests that a canary
answers. It loads missing versions while the current ones answer, switches atomically when all are loaded, and unloads
an earlier version after its last request. A version that cannot be loaded changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopsml.core import suggestions


@dataclass(frozen=True)
class Route:
    """Versions that a server has loaded, with their shares of requests.

    Attributes:
        number: Number of the route, in the order of the requests for routes.
        default: Version that answers requests without a version.
        canary: Version that answers a share of these requests; None if there is none.
        share: Share of the canary, 0 to 1.
        labels: Further names of versions; "stable" and "canary" always exist if there is such a version.
    """

    number: int
    default: int
    canary: int | None = None
    share: float = 0.0
    labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that must be loaded."""
        return (self.default,) if self.canary in (None, self.default) else (self.default, int(self.canary or 0))

    def version_of(self, label: str) -> int | None:
        """Return the version with this label; None if there is none."""
        own = {"stable": self.default} if self.canary is None else {"stable": self.default, "canary": self.canary}
        return {**{name: one for name, one in self.labels.items() if one in self.versions}, **own}.get(label)


@dataclass(frozen=True)
class Load:
    """Action to load a version and try it out; its result is the event ``loaded`` or ``failed``."""

    version: int


@dataclass(frozen=True)
class Unload:
    """Action to unload a version without requests."""

    version: int


@dataclass(frozen=True)
class Turned:
    """Report that the route with this number has taken effect."""

    number: int


@dataclass(frozen=True)
class RouteRefused:
    """Report that the route with this number cannot take effect; the previous one remains."""

    number: int
    reason: str


RouteAction = Load | Unload | Turned | RouteRefused


class NoSuchVersion(LookupError):
    """Error for a version number or label that is not served, or while no version is loaded."""


class Router:
    """State machine of one server's versions; callers carry out the actions that its methods return."""

    def __init__(self) -> None:
        self.route: Route | None = None  # in effect
        self._next: Route | None = None  # whose versions are being loaded
        self._loaded: set[int] = set()
        self._loading: set[int] = set()
        self._in_flight: dict[int, int] = {}
        self._asked = 0  # requests without a version since the route took effect

    @property
    def versions(self) -> dict[int, str]:
        """Version number -> "LOADING", "AVAILABLE" or "UNLOADING", sorted by version."""
        kept = self.route.versions if self.route else ()
        held = {one: "AVAILABLE" if one in kept else "UNLOADING" for one in self._loaded}
        coming = self._next.versions if self._next else ()
        states = {**dict.fromkeys(self._loading, "LOADING"), **held}
        states |= {one: "LOADING" for one in coming if states.get(one) == "UNLOADING"}
        return dict(sorted(states.items()))

    def switch_to(self, route: Route) -> list[RouteAction]:
        """Begin to switch to a route; an earlier one that has not taken effect is abandoned."""
        given_up = self._next
        self._next = route
        actions: list[RouteAction] = []
        if given_up is not None:
            actions.append(RouteRefused(given_up.number, f"route {route.number} was asked for meanwhile"))
        missing = [one for one in route.versions if one not in self._loaded | self._loading]
        self._loading |= set(missing)
        return [*actions, *(Load(one) for one in missing), *self._turn()]

    def loaded(self, version: int) -> list[RouteAction]:
        """Handle a version that was loaded and has answered a first call."""
        self._loading.discard(version)
        self._loaded.add(version)
        return self._turn()

    def failed(self, version: int, reason: str) -> list[RouteAction]:
        """Handle a version that could not be loaded, with the reason."""
        self._loading.discard(version)
        if self._next is None or version not in self._next.versions:
            return self._let_go()
        number, self._next = self._next.number, None
        return [RouteRefused(number, reason), *self._let_go()]

    def choose(self, version: int | None = None, label: str | None = None) -> int:
        """Return the version that answers a request.

        Raises:
            NoSuchVersion: The version or label is not served, or no version is loaded.
        """
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
        """Return default or canary; with a share of 0.1, exactly each tenth request goes to the canary."""
        assert self.route is not None
        if self.route.canary is None:
            return self.route.default
        self._asked += 1
        before, after = (int(count * self.route.share + 1e-9) for count in (self._asked - 1, self._asked))
        return self.route.canary if after > before else self.route.default

    def begin_request(self, version: int) -> None:
        """Count a request that this version is to answer."""
        self._in_flight[version] = self._in_flight.get(version, 0) + 1

    def end_request(self, version: int) -> list[RouteAction]:
        """Count a request that this version has answered, and return versions to unload."""
        self._in_flight[version] -= 1
        if self._in_flight[version]:
            return []
        del self._in_flight[version]
        return self._let_go()

    def _turn(self) -> list[RouteAction]:
        """Put the next route into effect if all its versions are loaded."""
        if self._next is None or not set(self._next.versions) <= self._loaded:
            return self._let_go()
        self.route, self._next, self._asked = self._next, None, 0
        return [Turned(self.route.number), *self._let_go()]

    def _let_go(self) -> list[RouteAction]:
        """Return actions to unload versions that no route and no request needs."""
        needed = {one for route in (self.route, self._next) if route for one in route.versions} | set(self._in_flight)
        gone = sorted(self._loaded - needed)
        self._loaded -= set(gone)
        return [Unload(one) for one in gone]
