"""The same training function twice: over TensorFlow's collectives, with 32 gradients in one, and over hopsml's own."""

from train_digits import train

from hopsml import experiment

WAYS = {"tensorflow": {"merge_scope": 32}, "hopsml": {}}


def main():
    """Train with both collectives, and print accuracy and speed of each."""
    results = {}
    for implementation, settings in WAYS.items():
        results[implementation] = experiment.collective_all_reduce(
            train, name=f"digits-{implementation}", implementation=implementation, **settings
        )
        print(results[implementation].summary())
    found = {
        name: {"accuracy": one.metrics["accuracy"], "steps_per_second": round(one.steps_per_second, 2)}
        for name, one in results.items()
    }
    for name, figures in found.items():
        print(f"{name:10}  accuracy {figures['accuracy']:.4f}  {figures['steps_per_second']:.1f} steps/s")
    print(results["tensorflow"].json(implementations=found))


if __name__ == "__main__":
    main()
