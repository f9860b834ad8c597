"""Whether some of the log is lost: a start goes on without it only where it is told to, and says what."""

import logging

from stretto.live.store import Gap, Reached, Store

MOST_NAMED = 10  # gaps in one line; chosen

log = logging.getLogger(__name__)


def what_is_lost(store: Store, reached: Reached | None, begin_anew: bool) -> list[str]:
    """What is given up of the log, a line each; raises LogDamaged where nobody has said to begin anew.

    reached: how far it had come, as far as that is known.
    """
    if not begin_anew:
        store.check_whole(reached)
        return []
    last, gaps = store.last(), store.damage()
    store.go_on_without(gaps)
    lines = []
    if reached is not None and reached.seq > last:
        lines.append(f"{Gap(last + 1, reached.seq).words} of the log are lost, and jobs that they told of")
    if gaps:
        more = f", and {len(gaps) - MOST_NAMED} more" if len(gaps) > MOST_NAMED else ""
        named = ", ".join(gap.words for gap in gaps[:MOST_NAMED])
        lines.append(f"{named}{more}: missing or damaged, and left out from now on")
    found = [f"begun anew: {line}" for line in lines] or ["begun anew: nothing of the log is lost"]
    for line in found:
        log.warning("%s", line)
    return found
