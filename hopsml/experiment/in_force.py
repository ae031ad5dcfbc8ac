"""What the workers of a run did together, as they saw it themselves; pure. What was asked for may be something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.cluster.gang.elastic_gang import WITHOUT_COMMITS
from hopsml.cluster.worker.in_force import PARAMETER_SERVERS

_PATHS = {
    "scoped_allocator": "merged by TensorFlow's scoped allocator",
    "packs": "merged by concatenation (packs)",
    "collective": "merged by hopsml's collective",
}


def of(seen: Sequence[Mapping[str, int | str]], committed: bool | None = None) -> dict[str, Any]:
    """What to record, from what each worker that trains has seen; ``committed``: whether a worker of an elastic run has
    ever committed its state, None for a run of fixed size.

    ``formed``: whether there was a group; where there was, ``by`` what and ``why``, and of the gradients that were
    reduced in a step how many there were, in how many collectives, by which path. Where there was no group, or none
    were reduced in it, ``trained_alone``: how many workers gave gradients to a TensorFlow optimizer (either Keras, or
    TensorFlow 1) all the same. Of other frameworks, and of updates by hand, nothing is known.
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
    """What did not come about though it was asked for: a group's training, an elastic run's commits; "" for nothing."""
    missing = "" if facts.get("committed", True) else f"nothing was committed in this elastic run. {WITHOUT_COMMITS}"
    return "; ".join(text for text in (_trained_apart(facts), missing) if text)


def _trained_apart(facts: Mapping[str, Any]) -> str:
    """For several workers that trained by TensorFlow, each by itself; "" where that was not seen.

    A function that leaves TensorFlow alone, or uses it for something else, has no reason to form its group: it may
    merge in another way (``hopsml.elastic``, torch, JAX), or have nothing to merge. One worker that trains beside
    others that do not is what was meant, as with parameter servers.
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
    """How gradients were merged, in one line, from what ``of`` returned."""
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
