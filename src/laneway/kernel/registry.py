"""Which lanes there are: configured ones, those made on the fly, and the caps they share.

Names are paths: `execute`, or `s1/execute` for the lane `execute` of scope `s1`, which takes its settings from
`execute` unless it has its own. `session:<key>` lanes appear by themselves. Lanes made on the fly are forgotten
when nothing uses them; what they have counted is kept for their family (`session:*`, `*/execute`).
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
from collections.abc import Iterable, Mapping

from laneway.errors import ConfigError, UnknownLaneError
from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import SESSION_PREFIX, Counters, Lane, Pool
from laneway.records import Group, LaneConfig

SESSION_LANE = LaneConfig(concurrency=1, exclusive=True)
NAME_MAX = 512
PART_MAX = 400
_GROUP_RANK, _THREADS_RANK, _ROOT_RANK = 0, 1, 2


class Registry:
    """Finds lanes by name and makes those that may be made."""

    def __init__(
        self,
        configs: Mapping[str, LaneConfig],
        *,
        groups: Mapping[str, Group],
        max_concurrent: int | None,
        threads_max: int,
        creates_unknown: bool,
    ) -> None:
        self.configs: dict[str, LaneConfig] = {}
        self.lanes: dict[str, Lane] = {}
        self.retired: dict[str, Counters] = {}
        self.root = Pool("max_concurrent", max_concurrent, rank=_ROOT_RANK) if max_concurrent is not None else None
        self.threads = Pool("threads", threads_max, rank=_THREADS_RANK)
        self.creates_unknown = creates_unknown
        self._groups = groups
        self._pools = {
            name: Pool(name, group.cap, rank=_GROUP_RANK, reserve=group.reserve) for name, group in groups.items()
        }
        self._orders: dict[str, int] = {}
        self._next_order = 0
        for name, config in configs.items():
            self.configure(name, config, now=0)
        for name, group in groups.items():
            for reserved in group.reserve:
                if not any(fnmatch.fnmatchcase(reserved, pattern) for pattern in group.lanes):
                    raise ConfigError(
                        f"group {name!r} reserves for {reserved!r}, which is not one of its lanes",
                        setting="reserve",
                        hint=f"its lanes are {', '.join(group.lanes)}",
                    )

    def configure(self, name: str, config: LaneConfig, *, now: int) -> Lane:
        """Make a lane that stays, or say how a lane of that name is to be made."""
        check_name(name)
        if name in self.lanes:
            raise ConfigError(f"lane {name!r} exists already", setting=name, hint="change it with resize")
        if name.rpartition("/")[2].startswith(SESSION_PREFIX) and not config.exclusive:
            raise ConfigError(f"lane {name!r}: session lanes are exclusive", setting="exclusive")
        lane = self._make(name, config, configured=True, now=now)
        self.configs[name] = config
        return lane

    def find(self, name: str, now: int, *, make: bool = False) -> Lane:
        """The lane of that name, made on the fly where that is allowed (or, with `make`, in any case)."""
        lane = self.lanes.get(name)
        if lane is not None:
            return lane
        check_name(name)
        scope, _, short = name.rpartition("/")
        _check_session(name, short)
        config = self.configs.get(short) if scope else None
        if config is None:
            if short.startswith(SESSION_PREFIX):
                config = SESSION_LANE
            elif self.creates_unknown or make:
                config = LaneConfig()
            else:
                raise self._unknown(name)
        return self._make(name, config, configured=False, now=now)

    def check_known(self, name: str) -> None:
        """Refuse names that could never be a lane here; a lane made on the fly need not exist at the moment."""
        scope, _, short = name.rpartition("/")
        _check_session(name, short)
        if not (
            name in self.lanes
            or self.creates_unknown
            or short.startswith(SESSION_PREFIX)
            or (scope and short in self.configs)
        ):
            raise self._unknown(name)

    def retire_if_idle(self, lane: Lane, now: int) -> None:
        """Forget a lane made on the fly that nothing uses, unless that would forget a limit."""
        if lane.configured or lane.users or lane.held or lane.paused or lane.closed_until is not None:
            return
        if self.lanes.get(lane.name) is not lane:
            return  # it was forgotten before
        if lane.bucket is not None and not lane.bucket.is_full(now):
            return
        del self.lanes[lane.name]
        lane.queue.sweep()  # who still knows this lane must not keep its jobs alive
        lane.phase += 1  # its alarms are not for the next lane of that name
        self.retired.setdefault(self.family_of(lane.name), Counters()).merge(lane.counters)

    def forget(self, name: str, jobs: Iterable[Entry], now: int) -> None:
        """A configured lane is not wanted any more: it goes when the last of these jobs has left it, or at once."""
        lane = self.lanes.get(name)
        self.configs.pop(name, None)
        self._orders.pop(name, None)
        if lane is None or not lane.configured:
            return
        lane.configured = False
        busy = lane.held or lane.waiting or lane.scheduled or lane.lent
        lane.users = sum(lane in entry.lanes for entry in jobs) if busy else 0
        lane.bucket, lane.closed_until, lane.paused = None, None, False
        lane.set_care()
        self.retire_if_idle(lane, now)

    def family_of(self, name: str) -> str:
        """What a lane made on the fly is counted under once it is forgotten; there are only so many families."""
        scope, _, short = name.rpartition("/")
        if short.startswith(SESSION_PREFIX):
            short = SESSION_PREFIX + "*"
        elif short not in self.configs:
            short = "*"
        return f"*/{short}" if scope else short

    def _make(self, name: str, config: LaneConfig, *, configured: bool, now: int) -> Lane:
        short = name.rpartition("/")[2]
        # A total order over all lanes: jobs with several lanes take them in this order, so none waits in a circle.
        # A lane of a scope has the place of the lane of that name here, whether or not it has settings of its own.
        key = short if short in self.configs else name if configured else ""
        if key not in self._orders:
            self._orders[key] = self._next_order
            self._next_order += 1
        order = (self._orders[key], name)
        lane = Lane(name, config, order=order, configured=configured, now=now)
        pools: list[Pool] = []
        if not lane.is_control:
            group = self._group_of(name)
            if group is not None:
                pools.append(group)
            if self.root is not None:
                pools.append(self.root)
        lane.join(tuple(pools), self.threads)
        self.lanes[name] = lane
        return lane

    def _group_of(self, name: str) -> Pool | None:
        matching = [
            group_name
            for group_name, group in self._groups.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in group.lanes)
        ]
        if len(matching) > 1:
            raise ConfigError(
                f"lane {name!r} is in {len(matching)} groups ({', '.join(matching)}); at most one is allowed",
                setting="groups",
                hint="make the patterns of the groups disjoint",
            )
        return self._pools[matching[0]] if matching else None

    def _unknown(self, name: str) -> UnknownLaneError:
        known = tuple(self.lanes)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        return UnknownLaneError(lane=name, suggestion=close[0] if close else None, known=known[:10])


def _check_session(name: str, short: str) -> None:
    if short == SESSION_PREFIX:
        raise ConfigError(f"lane {name!r} has no session key", setting="lane", hint="session:<key>, key not empty")


def check_name(name: object) -> None:
    """A lane name is printable text without blanks at its ends."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"a lane name is 1 to {NAME_MAX} printable characters without blanks at its ends, not {name!r}",
            setting="lane",
            value=name,
        )
    if any(not part for part in name.split("/")):
        raise ConfigError(f"lane name {name!r} has an empty part between slashes", setting="lane", value=name)


def lane_part(text: str) -> str:
    """Any text as a part of the name of a lane: what such a name cannot have is written as a number."""
    if not (text.isprintable() and "%" not in text and "/" not in text and text == text.strip()):
        text = "".join(char if char.isalnum() or char in ":._-+@" else f"%{ord(char):x};" for char in text)
    return shortened(text)


def shortened(part: str) -> str:
    """A part of the name of a lane that leaves room for the others; what is too long is known by its hash."""
    return part if len(part) <= PART_MAX else f"%#{hashlib.sha256(part.encode()).hexdigest()}"
