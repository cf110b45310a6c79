"""Wrong inputs, as a newcomer gives them, and the words of the sentence that each must meet.

A sentence says what was wrong, with the value, and names the cure. None needs a compiled round.
"""

import json

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import FederatedDataset, Model, Task
from fedax.cli.main import run_command
from fedax.rounds import checks

X = np.linspace(-1, 1, 24).reshape(8, 3)
Y = np.arange(8) % 3
OFFSETS = np.array([0, 2, 4, 6, 8])
NAMES = np.array(["ada", "bob", "cleo", "dan"])


def init(key):
    return {"w": jnp.zeros((3, 3))}


def apply(params, x):
    return x @ params["w"]


def loss(params, batch, key):
    values = ((apply(params, batch["x"])) ** 2).sum(1)
    return values, jnp.ones_like(values)


def outputs(params, batch):
    return apply(params, batch["x"])


def right(outputs, batch):
    values = (outputs.argmax(1) == batch["y"]).astype(outputs.dtype)
    return values, jnp.ones_like(values)


MODEL = fedax.classification(init, apply)
OWN = Model(init, loss, outputs, {"right": right})


def data(**changes):
    arrays = {name: a for name, a in ({"x": X, "y": Y} | changes).items() if a is not None}
    return FederatedDataset(arrays, OFFSETS, NAMES)


def train(model=MODEL, train=None, test=None, algorithm=None, num_rounds=1, **options):
    task = Task(model, data() if train is None else train, test)
    algorithm = fedax.fedavg(model, batch_size=2) if algorithm is None else algorithm
    return fedax.train(task, algorithm, num_rounds=num_rounds, **{"cohort_size": 2} | options)


def with_client(function, model=MODEL):
    """FedAvg whose client function answers something else."""
    good = fedax.fedavg(model, batch_size=2)
    (exchange,) = good.exchanges

    def client(message, state, data, key):
        return function(exchange.client(message, state, data, key))

    return good._replace(exchanges=(exchange._replace(client=client),))


def with_server(function):
    good = fedax.fedavg(MODEL, batch_size=2)
    return good._replace(exchanges=(good.exchanges[0]._replace(server=function),))


MISTAKES = {}


def mistake(*words):
    """The words that the sentence must hold, about the function that makes the mistake."""
    def register(function):
        MISTAKES[function.__name__] = (words, function)
        return function
    return register


# ------------------------------------------------------------------ data


@mistake("'x'", "'features'", "Did you mean 'features'?", "inputs='features'")
def names_that_the_model_does_not_find():
    train(train=FederatedDataset({"features": X, "label": Y}, OFFSETS))


@mistake("'y'", "Did you mean 'label'?", "labels='label'")
def a_label_by_another_name():
    train(train=FederatedDataset({"x": X, "label": Y}, OFFSETS))


@mistake("loss", "'x'", "'pixels'", "Did you mean 'pixels'?", "test_mistakes.py, line")
def names_that_an_own_loss_does_not_find():
    train(OWN, FederatedDataset({"pixels": X, "y": Y}, OFFSETS))


@mistake("train", "dict", "FederatedDataset.from_clients")
def a_dictionary_of_clients_as_data():
    train(train={"ada": {"x": X, "y": Y}})


@mistake("train", "dict", "FederatedDataset.from_clients")
def a_dictionary_of_arrays_as_data():
    train(train={"x": X, "y": Y})


@mistake("test", "tuple", "FederatedDataset")
def a_pair_of_arrays_as_test_data():
    train(test=(X, Y))


@mistake("'ada'", "tuple", '{"x": ', "dictionary")
def tuples_as_client_data():
    FederatedDataset.from_clients({"ada": (X, Y), "bob": (X, Y)})


@mistake("Client 0", "array", "dictionary")
def arrays_as_client_data():
    FederatedDataset.from_clients([X, X])


@mistake("array", "from_clients")
def an_array_as_clients():
    FederatedDataset.from_clients(X)


@mistake("'words'", "text", "numbers", "np.unique")
def arrays_of_text():
    train(train=data(words=np.array(["a", "b"] * 4)))


@mistake("'ragged'", "objects", "pad")
def arrays_of_objects():
    ragged = np.empty(8, object)
    ragged[:] = [np.zeros(n) for n in range(8)]
    train(train=data(ragged=ragged))


@mistake("'day'", "datetime64", "numbers")
def arrays_of_dates():
    train(train=data(day=np.array(["2020-01-01"] * 8, "datetime64[D]")))


@mistake("arrays", "list", "name")
def arrays_without_names():
    FederatedDataset([X, Y], OFFSETS)


@mistake("'x'", "first axis", "examples")
def a_number_as_array():
    FederatedDataset({"x": np.float32(3)}, OFFSETS)


@mistake("8", "7", "same number of examples")
def arrays_of_unequal_lengths():
    FederatedDataset({"x": X, "y": Y[:7]}, OFFSETS)


@mistake("no examples", "'bob'", "Leave empty clients out")
def an_empty_client():
    FederatedDataset.from_clients({"ada": {"x": X}, "bob": {"x": X[:0]}})


@mistake("at least one client")
def no_clients():
    FederatedDataset.from_clients({})


@mistake("'bob'", "'x'", "not finite", "example 1", "Clean the data")
def nan_in_a_clients_data():
    poisoned = X.copy()
    poisoned[1, 2] = np.nan
    FederatedDataset.from_clients({"ada": {"x": X}, "bob": {"x": poisoned}})


@mistake("not finite", "'x'", "NaN", "client 'ada'", "example 1")
def nan_in_everyones_data():
    poisoned = X.copy()
    poisoned[1::2] = np.nan
    train(train=data(x=poisoned))


@mistake("'zoe'", "no client")
def a_client_that_is_not_there():
    data().client("zoe")


# ------------------------------------------------------------------ labels and shapes


@mistake("labels 'y'", "whole numbers", "float64", "astype(np.int32)")
def labels_that_are_floats():
    train(train=data(y=Y.astype(float)))


@mistake("'y'", "3 classes", "0 to 2", "3", "'bob'")
def labels_that_count_from_one():
    train(train=data(y=Y + 1))


@mistake("'y'", "0 to 2", "-1", "'ada'")
def negative_labels():
    train(train=data(y=Y - 1))


@mistake("test", "'y'", "0 to 2", "7", "'dan'")
def labels_of_the_test_data_out_of_range():
    train(test=data(y=np.array([0, 1, 2, 0, 1, 2, 0, 7])))


@mistake("one-hot", "'y'", "argmax")
def one_hot_labels():
    train(train=data(y=np.eye(3)[Y]))


@mistake("'y'", "[2, 1]", 'y[:, 0]')
def labels_with_one_axis_too_many():
    train(train=data(y=Y[:, None]))


@mistake("'y'", "[2, 1]", "[2]", "same shape", "y[:, 0]")
def targets_with_one_axis_too_many():
    model = fedax.regression(lambda key: jnp.zeros(3), lambda p, x: x @ p)
    train(model, data(y=Y[:, None].astype(float)))


@mistake("'y'", "[2]", "[2, 1]", "same shape", "predictions[:, 0]")
def predictions_with_one_axis_too_many():
    model = fedax.regression(lambda key: jnp.zeros((3, 1)), lambda p, x: x @ p)
    train(model, data(y=Y.astype(float)))


@mistake("Logits", "[B, C]", "[2]", "one column per class")
def logits_without_classes():
    train(fedax.classification(lambda key: jnp.zeros(3), lambda p, x: x @ p))


@mistake("apply", "uint8", "dtype", "astype(np.float32)")
def images_of_bytes():
    convolve = lambda p, x: jax.lax.conv(x, p, (1, 1), "VALID")[:, :, 0, 0]  # noqa: E731
    model = fedax.classification(lambda key: jnp.zeros((3, 1, 4, 4)), convolve)
    train(model, data(x=np.zeros((8, 1, 4, 4), np.uint8)))


@mistake("apply", "(3,)", "(5,)", "test_mistakes.py, line", "float64[2, 3]")
def features_of_another_number():
    train(fedax.classification(lambda key: {"w": jnp.zeros((5, 3))}, apply))


# ------------------------------------------------------------------ models


@mistake("loss", "B = 2", "shape []", "(losses [B], weights [B])", "test_mistakes.py, line")
def a_loss_that_is_a_mean():
    def mean(params, batch, key):
        values, weights = loss(params, batch, key)
        return values.mean(), weights.mean()
    train(OWN._replace(loss=mean))


@mistake("loss", "(losses [B], weights [B])", "float64[2]", "jnp.ones_like(losses)")
def a_loss_without_weights():
    train(OWN._replace(loss=lambda p, batch, key: loss(p, batch, key)[0]))


@mistake("losses", "[2, 1]", "(losses [B], weights [B])")
def a_loss_with_one_axis_too_many():
    train(OWN._replace(loss=lambda p, b, k: tuple(a[:, None] for a in loss(p, b, k))))


@mistake("loss", "int64", "floating point")
def a_loss_of_whole_numbers():
    train(OWN._replace(loss=lambda p, b, k: (jnp.argmax(b["x"], 1), jnp.ones(len(b["x"])))))


@mistake("loss", "loss(params, batch, key)", "positional argument")
def a_loss_without_a_key():
    train(OWN._replace(loss=lambda params, batch: loss(params, batch, None)))


@mistake("loss", "'v'", "KeyError", "params", "'w'")
def a_loss_that_wants_another_parameter():
    train(OWN._replace(loss=lambda params, batch, key: params["v"]))


@mistake("weight", "negative", "example 0")
def a_loss_with_negative_weights():
    train(OWN._replace(loss=lambda p, b, k: (loss(p, b, k)[0], -jnp.ones(len(b["x"])))))


@mistake("loss", "jnp.where", "test_mistakes.py, line")
def a_loss_that_branches_on_a_value():
    def branching(params, batch, key):
        values, weights = loss(params, batch, key)
        return (values if values.sum() > 0 else -values), weights
    train(OWN._replace(loss=branching))


@mistake("metric 'right'", "shape []", "(values [B], weights [B])")
def a_metric_that_is_a_mean():
    train(OWN._replace(metrics={"right": lambda o, b: [a.mean() for a in right(o, b)]}),
          test=data())


@mistake("metric 'right'", "float64[8]", "(values [B], weights [B])")
def a_metric_without_weights():
    train(OWN._replace(metrics={"right": lambda o, b: right(o, b)[0]}), test=data())


@mistake("metric 'right'", "-1", "negative", "weight 0")
def a_metric_with_negative_weights():
    negative = lambda o, b: (right(o, b)[0], -right(o, b)[1])  # noqa: E731
    fedax.evaluate(OWN._replace(metrics={"right": negative}), init(None), data())


@mistake("metric 'right'", "0.5", "function")
def a_metric_that_is_no_function():
    train(OWN._replace(metrics={"right": 0.5}), test=data())


@mistake("metrics", "list", "{")
def metrics_without_names():
    train(OWN._replace(metrics=[right]), test=data())


@mistake("metrics", "None", "{}")
def no_metrics():
    train(OWN._replace(metrics=None), test=data())


@mistake("outputs", "None", "function")
def no_outputs():
    train(OWN._replace(outputs=None), test=data())


@mistake("'y'", "test", "array")
def evaluation_data_that_lack_an_array():
    train(test=data(y=None))


@mistake("init", "Dense", "lambda key: net.init(key, x)", "net.apply")
def a_flax_module_instead_of_functions():
    net = flax.linen.Dense(3)
    fedax.classification(net, net.apply)


@mistake("init", "dict", "lambda key: params")
def parameters_instead_of_init():
    fedax.classification({"w": jnp.zeros((3, 3))}, apply)


@mistake("init", "init(key)", "positional argument")
def an_init_without_a_key():
    train(OWN._replace(init=lambda: init(None)))


@mistake("init", "str", "floating point arrays")
def an_init_that_gives_text():
    train(OWN._replace(init=lambda key: {"w": "zeros"}))


@mistake("init", "int64", "floating point")
def an_init_of_whole_numbers():
    train(OWN._replace(init=lambda key: {"w": jnp.arange(3)}))


@mistake("init", "None", "no parameters")
def an_init_that_returns_nothing():
    train(OWN._replace(init=lambda key: None))


@mistake("model", "0.1", "fedax.classification", "first argument")
def arguments_in_the_wrong_order():
    fedax.fedavg(0.1, MODEL)


class Network:
    """As torch and Keras have them."""

    def parameters(self):
        return []

    def __call__(self, x):
        return x


@mistake("model", "Network", "fedax.classification(init, apply)")
def a_network_of_another_library():
    fedax.fedadam(Network())


@mistake("model", "Task", "task.model")
def a_task_as_model():
    fedax.scaffold(Task(MODEL, data()))


@mistake("model", "dict", "fedax.classification")
def parameters_as_model():
    fedax.mime({"w": jnp.zeros(3)})


@mistake("model", "fedax.classification(init, apply)")
def a_jitted_function_as_model():
    fedax.fedprox(jax.jit(apply))


@mistake("model", "classification", "fedax.classification(init, apply)")
def a_model_factory_that_was_not_called():
    fedax.fedavg(fedax.classification)


# ------------------------------------------------------------------ settings


@mistake("batch_size", "0", "at least 1")
def no_batch():
    fedax.fedavg(MODEL, batch_size=0)


@mistake("batch_size", "2.5", "whole number")
def a_fraction_of_a_batch():
    fedax.fedavg(MODEL, batch_size=2.5)


@mistake("client_learning_rate", "'0.1'", "number", "schedule")
def a_rate_as_text():
    fedax.fedavg(MODEL, "0.1")


@mistake("client_learning_rate", "-1", "at least 0")
def a_negative_rate():
    fedax.fedavg(MODEL, -1)


@mistake("server_learning_rate", "nan", "finite")
def a_rate_of_nan():
    fedax.fedavg(MODEL, 0.1, float("nan"))


@mistake("client_learning_rate", "optimizer", "client_optimizer")
def an_optimizer_as_rate():
    fedax.fedavg(MODEL, optax.sgd(0.1))


@mistake("schedule", "[2]", "one number")
def a_schedule_of_vectors():
    train(algorithm=fedax.fedavg(MODEL, lambda t: jnp.ones(2), batch_size=2))


@mistake("schedule", "None", "one number")
def a_schedule_that_returns_nothing():
    train(algorithm=fedax.fedavg(MODEL, 0.1, lambda t: None, batch_size=2))


@mistake("schedule", "schedule(round_index)", "positional argument")
def a_schedule_of_nothing():
    train(algorithm=fedax.fedavg(MODEL, lambda: 0.1, batch_size=2))


@mistake("server_optimizer", "sgd", "optax.sgd(1.0)")
def an_optimizer_that_was_not_called():
    fedax.fedopt(MODEL, None, optax.sgd)


@mistake("client_optimizer", "0.1", "client_learning_rate", "optax")
def a_rate_as_optimizer():
    fedax.fedopt(MODEL, 0.1)


@mistake("server_optimizer", "as_transformation")
def a_base_optimizer_on_the_server():
    fedax.fedopt(MODEL, None, fedax.base_optimizers.sgdm(0.9))


@mistake("base", "fedax.base_optimizers", "optax")
def an_optax_optimizer_as_base():
    fedax.mime(MODEL, 0.1, optax.adam(0.1))


@mistake("'learning_rate'", "Did you mean", "client_learning_rate'")
def a_setting_that_is_not_there():
    fedax.fedavg(MODEL, learning_rate=0.1)


@mistake("num_rounds", "-1", "at least 0")
def negative_rounds():
    train(num_rounds=-1)


@mistake("num_rounds", "1.5", "whole number")
def a_fraction_of_a_round():
    train(num_rounds=1.5)


@mistake("cohort", "5", "population of 4", "1 to 4")
def a_cohort_larger_than_the_population():
    train(cohort_size=5)


@mistake("seed", "-3", "at least 0")
def a_negative_seed():
    train(seed=-3)


@mistake("seed", "whole number", "PRNG key")
def a_key_as_seed():
    train(seed=jax.random.key(0))


@mistake("mesh", "2", "fedax.client_mesh")
def a_number_as_mesh():
    train(mesh=2)


@mistake("devices", "2", "jax.devices()")
def a_number_of_devices_for_a_mesh():
    fedax.client_mesh(2)


@mistake("on_round", "print", "function")
def a_callback_that_is_text():
    train(on_round="print")


@mistake("state", "dict", "TrainingState", ".state")
def parameters_as_state():
    train(state={"w": jnp.zeros((3, 3))})


@mistake("task", "'shakespeare'", "fedax.load_task")
def the_name_of_a_task_with_a_state():
    fedax.train("shakespeare", fedax.fedavg(MODEL), num_rounds=1, state=train(num_rounds=0).state)


@mistake("state", "10 clients", "4")
def a_state_of_another_population():
    few = data()
    many = FederatedDataset({"x": np.ones((10, 3)), "y": np.zeros(10, int)}, np.arange(11))
    algorithm = fedax.scaffold(MODEL, batch_size=2)
    state = fedax.train(Task(MODEL, many), algorithm, num_rounds=0).state
    fedax.train(Task(MODEL, few), algorithm, num_rounds=1, cohort_size=2, state=state)


@mistake("state", "ServerState", "another algorithm")
def a_state_of_another_algorithm():
    state = train(num_rounds=0).state
    train(algorithm=fedax.fedadam(MODEL, batch_size=2), state=state)


@mistake("sampler", "client 4", "0 to 3")
def a_sampler_beyond_the_population():
    train(sampling=lambda seed, t: [0, 4])


@mistake("integers", "0.5")
def a_sampler_of_fractions():
    train(sampling=lambda seed, t: [0.5, 1.5])


@mistake("sampling", "(seed, round_index)", "positional argument")
def a_sampler_of_one_argument():
    train(sampling=lambda t: [0, 1])


@mistake("'unifrom'", "Did you mean 'uniform'?")
def a_sampling_that_is_not_there():
    train(sampling="unifrom")


# ------------------------------------------------------------------ tasks and algorithms


@mistake("algorithm", "fedavg", "fedax.fedavg(task.model)")
def a_factory_that_was_not_called():
    fedax.train(Task(MODEL, data()), fedax.fedavg, num_rounds=1)


@mistake("task", "FederatedAlgorithm", "train(task, algorithm")
def a_task_and_an_algorithm_the_other_way_round():
    fedax.train(fedax.fedavg(MODEL), Task(MODEL, data()), num_rounds=1)


@mistake("task", "FederatedDataset", "fedax.Task(model, data)")
def data_as_task():
    fedax.train(data(), fedax.fedavg(MODEL), num_rounds=1)


@mistake("task", "Task", "fedax.Task(model, data)")
def the_class_of_tasks_as_task():
    fedax.train(Task, fedax.fedavg(MODEL), num_rounds=1)


@mistake("task", "'shakespeare'", "fedax.load_task('shakespeare')")
def the_name_of_a_task():
    fedax.train("shakespeare", fedax.fedavg(MODEL), num_rounds=1)


@mistake("train", "Task", "task.train")
def a_task_as_data():
    train(train=Task(MODEL, data()))


@mistake("client function of exchange 1 of 1", "ZeroDivisionError", "test_mistakes.py, line")
def a_client_function_that_fails():
    train(algorithm=with_client(lambda reply: 1 // 0))


@mistake("server function of exchange 1 of 1", "AttributeError", "test_mistakes.py, line")
def a_server_function_that_fails():
    train(algorithm=with_server(lambda state, mean, participation: mean.delta))


@mistake("broadcast function of exchange 2 of 2", "KeyError", "test_mistakes.py, line")
def a_broadcast_function_that_fails():
    good = fedax.mime(MODEL, batch_size=2)
    last = good.exchanges[1]._replace(broadcast=lambda state: {}["params"])
    train(algorithm=good._replace(exchanges=(good.exchanges[0], last)))


@mistake("client function", "dict", "fedax.Reply")
def a_dictionary_as_reply():
    train(algorithm=with_client(lambda reply: reply._asdict()))


@mistake("upload", "int64", "floating point", "astype")
def an_upload_of_whole_numbers():
    train(algorithm=with_client(lambda reply: reply._replace(upload=jnp.arange(3))))


@mistake("upload", "str", "floating point")
def an_upload_of_text():
    train(algorithm=with_client(lambda reply: reply._replace(upload={"name": "ada"})))


@mistake("weight", "(3,)", "scalar")
def a_weight_for_each_class():
    train(algorithm=with_client(lambda reply: reply._replace(weight=jnp.ones(3))))


@mistake("weight", "negative", "'")
def a_negative_weight():
    train(algorithm=with_client(lambda reply: reply._replace(weight=-reply.weight)))


@mistake("info", "'accuracy'", "(value, weight)")
def an_info_without_weight():
    train(algorithm=with_client(lambda reply: reply._replace(info={"accuracy": 1.0})))


@mistake("client's state", "(2,)", "keep its structure, shapes and dtypes")
def a_client_state_that_changes_its_shape():
    algorithm = with_client(lambda reply: reply._replace(client_state=jnp.zeros(3)))
    train(algorithm=algorithm._replace(init_client=lambda params: jnp.zeros(2)))


@mistake("server function", "dict", "ServerState", "_replace")
def a_server_that_returns_parameters():
    train(algorithm=with_server(lambda state, mean, participation: dict(state.params)))


@mistake("server function", ".params['w']", "float64[3, 3]", "float64[3]")
def a_server_that_changes_shapes():
    train(algorithm=with_server(
        lambda state, mean, participation: state._replace(params={"w": jnp.zeros(3)})
    ))


@mistake("init", "dict", "params", "round_index", "NamedTuple")
def an_algorithm_whose_state_has_no_params():
    train(algorithm=fedax.fedavg(MODEL)._replace(init=dict))


@mistake("exchanges", "(exchange,)")
def an_exchange_that_is_not_in_a_tuple():
    good = fedax.fedavg(MODEL)
    train(algorithm=good._replace(exchanges=good.exchanges[0]))


@mistake("init_client", "None", "fedax.algorithm.stateless")
def no_initial_client_state():
    train(algorithm=fedax.fedavg(MODEL)._replace(init_client=None))


@mistake("elastic", "pseudo_gradient", "dict")
def a_wrapper_over_what_it_cannot_wrap():
    inner = with_client(lambda reply: reply._replace(upload={"w": reply.upload.pseudo_gradient}))
    train(algorithm=fedax.elastic(inner, MODEL))


@mistake("algorithm", "Model", "elastic(algorithm, model")
def a_wrapper_with_arguments_in_the_wrong_order():
    fedax.elastic(MODEL, fedax.fedavg(MODEL))


# ------------------------------------------------------------------ evaluation and the others


@mistake("model", "dict", "evaluate(model, params, dataset)")
def evaluation_in_another_order():
    fedax.evaluate(init(None), MODEL, data())


@mistake("dataset", "dict", "FederatedDataset.from_clients")
def evaluation_on_a_dictionary():
    fedax.evaluate(MODEL, init(None), {"x": X, "y": Y})


@mistake("'y'", "'x'", "array")
def evaluation_without_labels():
    fedax.evaluate_clients(MODEL, init(None), data(y=None))


@mistake("params", "TrainResult", "result.params")
def evaluation_of_a_result():
    fedax.evaluate(MODEL, train(num_rounds=0), data())


@mistake("apply", "params['w'] float64[2, 5]")
def evaluation_with_other_parameters():
    fedax.evaluate(MODEL, {"w": jnp.zeros((2, 5))}, data())


@mistake("batch_size", "0", "at least 1")
def evaluation_in_batches_of_nothing():
    fedax.evaluate(MODEL, init(None), data(), batch_size=0)


@mistake("client_sizes", "FederatedDataset", ".client_sizes")
def a_sampler_of_a_data_set():
    fedax.sampler("uniform", data(), 2, 0)


@mistake("cohort", "FederatedDataset", "CohortReader")
def the_dissimilarity_of_a_data_set():
    fedax.dissimilarity(MODEL, init(None), data(), jax.random.key(0))


@mistake("gamma", "-1")
def a_negative_gamma():
    clients = fedax.theory.QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
    fedax.theory.surrogate(clients, gamma=-1.0, Theta=2)


@mistake("2", "3")
def more_centres_than_curvatures():
    fedax.theory.QuadraticPopulation.from_centres([1.0, 2.0, 3.0], [1.0, 0.5])


@mistake("QuadraticPopulation", "Task", "from_")
def a_task_for_the_theory():
    fedax.theory.surrogate(Task(MODEL, data()), gamma=0.1, Theta=2)


@mistake("QuadraticPopulation", "FederatedDataset")
def a_quadratic_task_of_a_data_set():
    fedax.quadratic_task(data())


@mistake("local_update_decay takes a function of the two rates", "lambda client_rate, server_rate:",
         "got a FederatedAlgorithm")
def the_decay_of_an_algorithm():
    fedax.local_update_decay(fedax.fedavg(MODEL, 0.1), MODEL)


@mistake("local_update_decay takes a function of the two rates", "got the function fedavg")
def the_decay_of_a_factory():
    fedax.local_update_decay(fedax.fedavg, MODEL)


@mistake("elastic(algorithm, model, ...)", "missing a required argument: 'model'")
def a_wrapper_without_the_model():
    fedax.elastic(fedax.fedavg(MODEL))


@mistake("fedavg takes at most 3 positional arguments", "by name, such as batch_size=20")
def a_batch_size_without_its_name():
    fedax.fedavg(MODEL, 0.1, 1.0, 20)


@mistake("fedavg(model, ...)", "multiple values for argument 'client_learning_rate'")
def a_rate_given_twice():
    fedax.fedavg(MODEL, 0.1, client_learning_rate=0.1)


@mistake("params", "'model.safetensors'", "fedax.load_params('model.safetensors')")
def predictions_of_a_file():
    fedax.predict(MODEL, "model.safetensors", X)


@mistake("initial_params", "'model.safetensors'", "fedax.load_params('model.safetensors')")
def a_file_as_a_start():
    train(initial_params="model.safetensors")


@mistake("out", "a pathlib.Path", "5")
def a_number_as_a_folder():
    train(out=5)


@mistake("path", "{'w': ", "The parameters come first: fedax.save_params(params, path)")
def a_path_before_the_parameters():
    fedax.save_params("x", init(None))


@mistake("path", "a pathlib.Path", "{'w': ")
def parameters_in_place_of_a_file():
    fedax.load_params(init(None))


@mistake("examples", "FederatedDataset", "dataset.client_at(0)")
def the_communication_of_a_data_set():
    fedax.communication(fedax.fedavg(MODEL), MODEL, data())


@mistake("state", "None", "fedax.train(...).state")
def own_models_without_a_state():
    fedax.evaluate_own_models(Task(MODEL, data()), fedax.ditto(MODEL), None)


@mistake("grid", "[0.1, 0.2]", '{"client_learning_rate": [0.1, 0.2]}')
def a_grid_without_names():
    fedax.sweep(Task(MODEL, data()), fedax.fedavg, [0.1, 0.2], num_rounds=1)


@mistake("'my_tasks.py:small'", "import small from my_tasks.py and call it")
def a_function_for_the_command_line():
    fedax.load_task("my_tasks.py:small")


@mistake("'stays.csv'", "fedax.load_task('table', file='stays.csv', client=", "fedax.fit_table")
def a_table_for_the_command_line():
    fedax.load_task("stays.csv")


@mistake("momentum", "1.5", "below 1")
def a_momentum_above_one():
    fedax.fedavgm(MODEL, momentum=1.5)


@pytest.mark.quick
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_meets_a_sentence(name):
    words, function = MISTAKES[name]
    with pytest.raises((TypeError, ValueError, LookupError, fedax.DivergedError)) as caught:
        function()
    sentence = str(caught.value)
    missing = [word for word in words if word not in sentence]
    assert not missing, f"{missing} not in: {sentence}"
    assert len(sentence) < 900


def test_what_was_raised_is_the_cause():
    with pytest.raises(fedax.AlgorithmError) as caught:
        a_client_function_that_fails()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(fedax.ModelError) as caught:
        names_that_an_own_loss_does_not_find()
    assert isinstance(caught.value.__cause__, KeyError)


def test_looking_before_the_first_round_traces_an_evaluation_once():
    traced = []

    def counted(outputs, batch):
        traced.append(1)
        return right(outputs, batch)

    model = OWN._replace(metrics={"right": counted})
    for _ in range(2):
        train(model, test=data(), num_rounds=2, evaluate_every=1)
    assert len(traced) == 1


@pytest.mark.slow
def test_examples_on_a_disk_are_looked_at_here_and_there(tmp_path, monkeypatch):
    """Of 5,000 mapped examples every fifth: those say so, the others make the client's loss NaN."""
    count = 5000
    monkeypatch.setattr(checks, "MOST_READ_BYTES", 1000 * 4 * 8)  # of 3 features and a label
    for wrong, found in ((slice(None), True), (slice(3, 4), False)):
        labels = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.int64, (count,))
        labels[wrong] = 7
        many = FederatedDataset(
            {"x": np.ones((count, 3)), "y": labels}, np.arange(0, count + 1, 1000)
        )
        if found:
            with pytest.raises(fedax.ModelError, match=r"In task.train: .*range from 7 to 7"):
                train(train=many)
        else:
            algorithm = fedax.fedavg(MODEL, batch_size=1000)
            task = Task(MODEL, many)
            (report,) = fedax.simulate(task, algorithm, num_rounds=1, cohort_size=5)
            assert report.rejected == ["0"]


# ------------------------------------------------------------------ at the command line

OWN_FILE = """
import jax.numpy as jnp
import numpy as np
import fedax

X = np.linspace(-1, 1, 12).reshape(6, 2)
Y = np.arange(6) % 2


def task(kind: str = "good"):
    model = fedax.classification(lambda key: jnp.zeros((2, 2)), lambda w, x: x @ w)
    data = fedax.FederatedDataset(
        {"x": np.where(np.arange(6) == 3, np.nan, X.T).T if kind == "poisoned" else X,
         "y": Y + 1 if kind == "labels" else Y},
        np.array([0, 2, 4, 6]), np.array(["ada", "bob", "cleo"]),
    )
    if kind == "scalar":
        model = model._replace(loss=lambda w, batch, key: (batch["x"].mean(), 1.0))
    if kind == "metric":
        model = model._replace(metrics={"right": lambda logits, batch: logits.mean()})
    if kind == "dictionary":
        data = {"ada": {"x": X, "y": Y}}
    return fedax.Task(model, data, data)


def method(model, fault: str = "none"):
    good = fedax.fedavg(model, 0.1)
    (exchange,) = good.exchanges
    if fault == "client":
        exchange = exchange._replace(client=lambda message, state, data, key: 1 // 0)
    if fault == "server":
        exchange = exchange._replace(server=lambda state, mean, participation: mean)
    return good._replace(exchanges=(exchange,))
"""

AT_THE_COMMAND_LINE = {
    "labels": ("task.train, client 'ada'", "the labels 'y'", "2 classes"),
    "scalar": ("losses [B]", "mine.py, line"),
    "metric": ("the metric 'right'", "mine.py, line"),
    "dictionary": ("fedax.FederatedDataset", "from_clients"),
    "client": ("client function of exchange 1 of 1", "ZeroDivisionError", "mine.py, line"),
    "server": ("server function of exchange 1 of 1", "_replace", "mine.py, line"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", AT_THE_COMMAND_LINE)
def test_a_mistake_in_a_users_file_is_one_line(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN_FILE)
    key = "fault" if kind in ("client", "server") else "kind"
    status = run_command([
        "run", "mine.py:task", "mine.py:method", "--cohort-size", "2", "--rounds", "1",
        "--out", "folder", "--set", f"{key}={kind}",
    ])
    said = capsys.readouterr().err
    assert status == 2
    assert said.count("\n") == 1
    missing = [word for word in AT_THE_COMMAND_LINE[kind] if word.lower() not in said.lower()]
    assert not missing, f"{missing} not in: {said}"
    assert "defect" not in said
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("words", ["labels 'y'", "metric 'right'"])
def test_no_folder_is_made_before_a_mistake_is_said(tmp_path, words):
    metrics = {"right": lambda o, b: right(o, b)[0]}
    model, y = (MODEL, Y + 1) if "labels" in words else (OWN._replace(metrics=metrics), Y)
    with pytest.raises(fedax.ModelError, match=words):
        train(model, data(y=y), data(), out=tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.slow
def test_a_client_that_is_rejected_again_and_again_is_named(tmp_path, monkeypatch, capsys):
    """Rejected twice, then once more in a second sitting, where it is named; then no more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN_FILE)
    named = "Client 'bob' was rejected in 3 rounds"
    for rounds, arguments in (
        (2, ["mine.py:task", "mine.py:method", "--cohort-size", "3", "--out", "folder", "--set",
             "kind=poisoned", "checkpoint_every=1"]),
        (3, ["--resume", "folder"]),
        (4, ["--resume", "folder"]),
    ):
        assert run_command(["run", *arguments, "--rounds", str(rounds)]) == 0
        said = capsys.readouterr().out
        assert said.count(named) == (rounds == 3)
        assert ("'x' of client 'bob' is not finite" in said) == (rounds == 3)
    lines = (tmp_path / "folder" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["rejected"] for line in lines] == [["bob"]] * 4
    summary = json.loads((tmp_path / "folder" / "summary.json").read_text())
    assert summary["rejected_clients"] == {"bob": 4}
    page = (tmp_path / "folder" / "report.html").read_text()
    assert "<th>bob</th><td>in 4 rounds</td>" in page
