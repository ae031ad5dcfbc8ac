"""Effective settings of a run, as its workers observed them, which may differ from the requested ones; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.cluster.gang.elastic.health import WITHOUT_COMMITS
from hopsml.cluster.worker.collective_stats import PARAMETER_SERVERS

_PATHS = {
    "scoped_allocator": "merged by TensorFlow's scoped allocator",
    "packs": "merged by concatenation (packs)",
    "collective": "merged by hopsml's collective",
}


def of(seen: Sequence[Mapping[str, int | str]], committed: bool | None = None) -> dict[str, Any]:
    """Return the effective settings to record, from what each training worker has observed.

    Args:
        seen: facts of each worker that trains.
        committed: True if a worker of an elastic run has ever committed its state; None for a run of fixed size.

    Returns:
        ``formed``: True if there was a group; then ``by`` (its implementation) and ``why``, and for the gradients of a
        step their number, the number of collectives, and the path. If there was no group, or it reduced no gradients,
        ``trained_alone``: number of workers that passed gradients to a TensorFlow optimizer (either Keras, or
        TensorFlow 1) nevertheless. Other frameworks, and updates by hand, are not observed.
    """
    elastic = {} if committed is None else {"committed": committed}
    return _group(seen) | elastic


def _group(seen: Sequence[Mapping[str, int | str]]) -> dict[str, Any]:
    trained = sum("trained" in one for one in seen)
    together = [one for one in seen if one.get("group")]
    if len(seen) < 2 or not together:
        return {"workers": len(seen), "formed": False, "trained_alone": trained}
    chief = together[0]
    found = {"workers": len(seen), "formed": True, "by": chief["group"], "size": chief["size"]}
    if "why" in chief:
        found["why"] = chief["why"]
    if "gradients" in chief:
        scope = chief["merge_scope"] or "all"
        found |= {"merge_scope": scope, **{name: chief[name] for name in ("path", "gradients", "collectives")}}
        found |= {name: chief[name] for name in ("settings",) if name in chief}
    elif "operations" in chief:
        found["operations"] = chief["operations"]
    elif trained:
        found["trained_alone"] = trained
    return found


def warning(facts: Mapping[str, Any]) -> str:
    """Return a warning if group training or commits of an elastic run were requested but did not occur; else ""."""
    missing = "" if facts.get("committed", True) else f"nothing was committed in this elastic run. {WITHOUT_COMMITS}"
    return "; ".join(text for text in (_trained_apart(facts), missing) if text)


def _trained_apart(facts: Mapping[str, Any]) -> str:
    """Return a sentence for several workers that trained by TensorFlow separately; "" if that was not observed.

    A function that does not train by TensorFlow has no reason to form its group: it may merge in another way
    (``hopsml.elastic``, torch, JAX), or have nothing to merge. One worker that trains while the others do not is
    intended, as with parameter servers.
    """
    if facts.get("trained_alone", 0) < 2:
        return ""
    alone = f"{facts['trained_alone']} workers trained separately"
    if facts["formed"]:
        return (
            f"{alone}: a group was formed, but no gradients were merged in it, and the result is that of rank 0 alone; "
            "build the model and its optimizer inside strategy.scope(); a loop of your own calls strategy.run() as well"
        )
    return (
        f"{alone}: no TensorFlow group was formed, so no gradients were merged, and the result is that of rank 0 alone; "
        "call hopsml.tensorflow.strategy() first in the training function, and build the model in its scope"
    )


def merging(facts: Mapping[str, Any]) -> str:
    """Return a description of how gradients were merged, in one line, from the result of ``of``."""
    if facts["workers"] < 2:
        return "none: one worker"
    if not facts["formed"]:
        return "none: no framework formed a group"
    if facts["by"] == PARAMETER_SERVERS:
        workers = f"{facts['size']} worker{'s' if facts['size'] > 1 else ''}"
        return f"none: parameter servers, whose variables {workers} update independently"
    why = f", because {facts['why']}" if "why" in facts else ""
    if "operations" in facts:
        return (
            f"a group of {facts['size']} by {facts['by']}{why}: {facts['operations']} operations of torch.distributed"
        )
    if "gradients" not in facts:
        return f"a group of {facts['size']} by {facts['by']}{why}, in which no gradients were reduced by hopsml"
    gradients, collectives = facts["gradients"], facts["collectives"]
    how = "none merged" if collectives == gradients else _PATHS.get(facts["path"], facts["path"])
    settings = f" ({facts['settings']})" if "settings" in facts else ""
    merged = f"merge scope {facts['merge_scope']}: {gradients} gradients in {collectives} collectives, {how}"
    return merged + settings + why
