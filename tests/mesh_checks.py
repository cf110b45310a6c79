"""Run by test_mesh.py in a process of its own with several CPU devices; prints JSON."""

import json
import os
import sys


def main(dtype_name):  # noqa: PLR0915
    os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"

    import jax

    jax.config.update("jax_enable_x64", dtype_name == "float64")
    jax.config.update("jax_disable_most_optimizations", True)

    import jax.numpy as jnp
    import numpy as np

    import fedax
    from fedax.data import cohort_data
    from fedax.devices.mesh import client_mesh
    from fedax.rounds.turns import Turn
    from problems import largest_difference, quadratic_clients, quadratic_model

    SIZES = (3, 7, 1, 12, 5, 8, 2, 9, 4, 6, 11, 3, 20)
    dtype = jnp.result_type(float)
    data = quadratic_clients(SIZES, dtype=np.dtype(dtype))
    task = fedax.Task(quadratic_model(3, dtype), data, data, "quadratic")
    local = {"num_local_epochs": 2, "batch_size": 2}
    algorithms = {
        "fedyogi": fedax.fedyogi(task.model, 0.05, 0.1, **local),
        "scaffold": fedax.scaffold(task.model, 0.05, **local),
        "compressed scaffold": fedax.compressed(
            fedax.scaffold(task.model, 0.05, **local), fedax.codecs.top_k(0.3)
        ),
        "robust attacked scaffold": fedax.robust(
            fedax.attacked(
                fedax.scaffold(task.model, 0.05, **local), fedax.attacks.inner_product(0.5)
            ),
            fedax.robust_means.centred_clipping(0.5),
        ),
        "mime": fedax.mime(task.model, 0.05, fedax.base_optimizers.sgdm(0.9), **local),
    }
    options = {"num_rounds": 20, "cohort_size": 7, "evaluate_every": 5, "diagnostics": True}
    mesh, two = client_mesh(), client_mesh(jax.devices()[:2])
    found = {"devices": mesh.size}

    def compare(name, result, expected):
        found[name] = largest_difference(result.params, expected.params)
        for key in ("train_loss", "client_drift", "test_distance", "gradient_dissimilarity"):
            a, b = (np.asarray(r.history[key], float) for r in (result, expected))
            assert (np.isnan(a) == np.isnan(b)).all(), key
            found[name] = max(found[name], float(np.nanmax(np.abs(a - b) / np.nanmax(np.abs(b)))))
        for key in ("num_reports", "num_dropped", "total_local_steps", "bytes_up"):
            assert (result.history[key] == expected.history[key]).all(), key


    for name, algorithm in algorithms.items():
        one = fedax.train(task, algorithm, **options)
        compare(name, fedax.train(task, algorithm, mesh=mesh, **options), one)
        compare(
            f"{name}, chunks",
            fedax.train(task, algorithm, mesh=mesh, clients_per_chunk=2, **options), one,
        )
        half = fedax.train(task, algorithm, mesh=mesh, **options | {"num_rounds": 9})
        rest = fedax.train(task, algorithm, mesh=two, state=half.state, **options)
        found[f"{name}, resumed on 2"] = largest_difference(rest.params, one.params)
        rest = fedax.train(task, algorithm, state=half.state, **options)
        found[f"{name}, resumed on 1"] = largest_difference(rest.params, one.params)

    algorithm = algorithms["scaffold"]
    for how in ({"sampling": "with_replacement"}, {"dropout": 0.4}, {"sampling": "cyclic"}):
        one = fedax.train(task, algorithm, **options, **how)
        compare(f"{how}", fedax.train(task, algorithm, mesh=mesh, **options, **how), one)

    ditto = fedax.ditto(task.model, 0.05, **local)
    trained = [
        fedax.train(task, ditto, num_rounds=2, cohort_size=7, mesh=devices)
        for devices in (mesh, None)
    ]
    own = [result.history for result in trained]
    after = [
        fedax.evaluate_own_models(task, ditto, trained[1].state, mesh=where)["distance"]
        for where in (mesh, None)
    ]
    found["their own models afterwards"] = float(np.abs(after[0] / after[1] - 1).max())
    found["the clients' own models"] = max(
        abs(own[0][name][-1] / own[1][name][-1] - 1)
        for name in ("test_own_distance", "test_own_mean_distance")
    )

    # Batches of 3 on each of 4 devices; the 91 examples are not a multiple of 12.
    each = [
        fedax.evaluate_clients(task.model, one.params, data, 3, mesh=where)["distance"]
        for where in (mesh, None)
    ]
    pooled = [
        fedax.evaluate(task.model, one.params, data, 3, mesh=where)["distance"]
        for where in (mesh, None)
    ]
    found["evaluation"] = abs(pooled[0] / pooled[1] - 1)
    assert each[0].shape == (len(SIZES),)
    found["evaluation, client by client"] = float(np.abs(each[0] / each[1] - 1).max())

    # 13 clients that fine-tune, dealt to 4 devices.
    each = [
        fedax.evaluate_personalized(
            task, one.params, client_learning_rate=0.05, num_local_epochs=2, batch_size=2,
            mesh=where,
        )
        for where in (mesh, None)
    ]
    assert (each[0]["distance"] != each[0].before["distance"]).all()
    found["fine-tuning"] = float(np.abs(each[0]["distance"] / each[1]["distance"] - 1).max())

    # Crops and flips are the client's, and a sample is evaluated between rounds.
    rng = np.random.default_rng(0)
    images = data.__class__(
        {"x": rng.integers(0, 256, (data.num_examples, 6, 6, 1)).astype(np.uint8),
         "y": rng.integers(0, 3, data.num_examples).astype(np.int32)}, data.offsets,
    )
    linear = fedax.classification(
        lambda key: jax.random.normal(key, (16, 3), dtype),
        lambda params, x: x.reshape(len(x), 16) @ params,
        class_weights=[1.0, 2.0, 3.0],
    )
    model = fedax.models.preprocessed(
        linear,
        training=[fedax.models.random_crop(4, 1), fedax.models.random_flip(),
                  fedax.models.standardised_each()],
        evaluation=[fedax.models.central_crop(4), fedax.models.standardised_each()],
    )
    seen = [
        fedax.train(
            fedax.Task(model, images, images, "images"), fedax.fedavg(model, 0.1, **local),
            mesh=where, num_rounds=7, cohort_size=7, evaluate_every=3, evaluation_sample=31,
        )
        for where in (mesh, None)
    ]
    found["crops and flips"] = largest_difference(seen[0].params, seen[1].params)
    losses = [result.history["test_loss"][[2, 5, 6]] for result in seen]
    found["a sample between rounds"] = float(np.abs(losses[0] / losses[1] - 1).max())

    # Of clients of one size the same ones are measured, and a mesh's state goes on without it.
    even = quadratic_clients((5,) * 8, dtype=np.dtype(dtype))
    ties = fedax.Task(quadratic_model(3, dtype), even, even, "quadratic")
    one = fedax.train(ties, algorithm, **options)
    compare("ties", fedax.train(ties, algorithm, mesh=mesh, **options), one)
    assert len(half.params["x"].sharding.device_set) == 1
    assert len(half.state.server_state.params["x"].sharding.device_set) == 4
    assert len(rest.state.server_state.params["x"].sharding.device_set) == 1

    # A client's state is where the client trains, and nowhere else.
    keep = Turn.keep

    def look(turn, store, done=None):
        shards = turn.client_states["x"].addressable_shards
        found["states on a device"] = [shard.data.shape for shard in shards]
        keep(turn, store, done)

    Turn.keep = look
    fedax.train(task, algorithm, mesh=mesh, **options)
    Turn.keep = keep

    one = fedax.train(task, algorithm, **options)
    cohort_data.CohortReader.__init__.__defaults__ = (0, None)  # rows are packed for each round
    compare("packed", fedax.train(task, algorithm, mesh=mesh, **options), one)
    packed = cohort_data.CohortReader(data, 0, mesh)(np.array([0, 1, 2, 3]))
    found["rows on a device"] = [s.data.shape[:2] for s in packed.arrays["c"].addressable_shards]
    print(json.dumps(found))


if __name__ == "__main__":  # pytest imports it in search of doctests
    main(sys.argv[1])
