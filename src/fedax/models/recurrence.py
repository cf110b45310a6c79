"""The LSTM and the GRU layer with hand-written gradients: fast on a CPU, plain XLA everywhere.

LSTM. With the gate order i, f, g, o of Keras, sigma the logistic function, * elementwise, and
h_0 = c_0 = 0,

    [i_t, f_t, g_t, o_t] = act(x_t W + h_{t-1} U + b)       act = (sigma, sigma, tanh, sigma)
    c_t = f_t * c_{t-1} + i_t * g_t
    h_t = o_t * tanh(c_t)

Automatic differentiation of a scan over these lines accumulates the gradient of U once per
position. Here the backward scan only yields the gradients z'_t of the pre-activations, and

    W' = sum_t x_t^T z'_t      U' = sum_t h_{t-1}^T z'_t      b' = sum_t z'_t      x'_t = z'_t W^T

are one product each over all positions. Against `lax.scan` with automatic differentiation, a
gradient step of the Shakespeare model (2 layers of 256 units, 4 sequences of 80 characters, inside
a scan over steps) is 3.8 to 4.8 times as fast on a 2-core CPU, and 3.7 to 4.7 times under `vmap`
over 10 clients; with one layer of 128 units 2.8 to 4.1 and 2.3 to 2.5 times. The ranges are the
medians of a quiet and of a busy machine.

GRU. With the gate order r, z, n of PyTorch, h_0 = 0, and the reset gate r applied after the
recurrent product, as in cuDNN, PyTorch and Keras (`reset_after`), so that n has two biases,

    [r_t, z_t] = sigma(x_t W_rz + b_rz + h_{t-1} U_rz + c_rz)
    n_t = tanh(x_t W_n + b_n + r_t * a_t)                   a_t = h_{t-1} U_n + c_n
    h_t = (1 - z_t) * n_t + z_t * h_{t-1}

The gradient goes the same way, but the two products have different ones: z'_t = [r'_t, z'_t, n'_t]
for x_t W, and [r'_t, z'_t, n'_t * r_t] for h_{t-1} U.

Against `lax.scan`, a gradient step of one layer (256 units, 4 sequences of 80 positions, 8
features, inside a `fori_loop`) takes 3.5 to 4.3 ms instead of 13.0 to 13.6 on a 2-core CPU, 3.2 to
3.7 times as fast, and 2.5 times under `vmap` over 10 clients (medians and minima of 15 in turns).

References: Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9(8), 1997;
Gers, Schmidhuber and Cummins, "Learning to forget: continual prediction with LSTM", Neural
Computation 12(10), 2000, for the forget gate; Cho et al., "Learning phrase representations using
RNN encoder-decoder for statistical machine translation", EMNLP 2014, for the GRU, there with the
reset gate before the product.

| symbol | name |
|---|---|
| W, U, b | `input_kernel` [F, GH], `recurrent_kernel` [H, GH], `bias` [GH]: G = 4, or 3 of a GRU |
| c | `recurrent_bias` [3H] |
| x, h | `inputs` [B, T, F], `outputs` [B, T, H] |
| x W + b | `projected` [T, B, GH] |
"""

from collections.abc import Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from fedax.algorithm import Array

Gates: TypeAlias = tuple[Array, Array, Array, Array]
Residuals: TypeAlias = tuple[Array, Array, Array, Gates]
GRUResiduals: TypeAlias = tuple[Array, Array, Gates]


def init_lstm(key: Array, num_features: int, num_units: int) -> dict[str, Array]:
    """Draws the parameters of one layer as Keras does by default, in float32.

    W is Glorot uniform, U has orthonormal rows over the whole [H, 4H] matrix, and b is 0 except
    for the forget gate, where it is 1 (Gers et al. 2000; Keras `unit_forget_bias`). There is one
    bias, not one per product, so a layer has 4H (F + H + 1) parameters. For another precision,
    cast the arrays.

    Args:
      key: a PRNG key.
      num_features: F >= 1.
      num_units: H >= 1.

    Returns:
      `{'input_kernel': [F, 4H], 'recurrent_kernel': [H, 4H], 'bias': [4H]}`.

    Raises:
      ValueError: a size is not positive.

    Example:
      >>> {name: array.shape for name, array in init_lstm(jax.random.key(0), 8, 16).items()}
      {'input_kernel': (8, 64), 'recurrent_kernel': (16, 64), 'bias': (64,)}
    """
    parameters = _init(key, num_features, num_units, 4)
    forget = slice(num_units, 2 * num_units)
    return {**parameters, "bias": parameters["bias"].at[forget].set(1)}


def init_gru(key: Array, num_features: int, num_units: int) -> dict[str, Array]:
    """Draws the parameters of one layer as Keras does by default, in float32.

    W is Glorot uniform, U has orthonormal rows over the whole [H, 3H] matrix, and both biases are
    0. A layer has 3H (F + H + 2) parameters. For another precision, cast the arrays.

    Args:
      key: a PRNG key.
      num_features: F >= 1.
      num_units: H >= 1.

    Returns:
      `{'input_kernel': [F, 3H], 'recurrent_kernel': [H, 3H], 'bias': [3H], 'recurrent_bias':
      [3H]}`. Those of a layer of `torch.nn.GRU` are its `weight_ih_l0`, `weight_hh_l0`, both
      transposed, `bias_ih_l0` and `bias_hh_l0`.

    Raises:
      ValueError: a size is not positive.

    Example:
      >>> parameters = init_gru(jax.random.key(0), num_features=8, num_units=16)
      >>> parameters["input_kernel"].shape, parameters["recurrent_bias"].shape
      ((8, 48), (48,))
    """
    parameters = _init(key, num_features, num_units, 3)
    return {**parameters, "recurrent_bias": jnp.zeros_like(parameters["bias"])}


def _init(key: Array, num_features: int, num_units: int, num_gates: int) -> dict[str, Array]:
    if num_features < 1 or num_units < 1:
        raise ValueError(
            f"num_features and num_units must be positive, not {num_features} and {num_units}"
        )
    input_key, recurrent_key = jax.random.split(key)
    size = num_gates * num_units
    glorot, orthogonal = jax.nn.initializers.glorot_uniform(), jax.nn.initializers.orthogonal()
    return {
        "input_kernel": glorot(input_key, (num_features, size), jnp.float32),
        "recurrent_kernel": orthogonal(recurrent_key, (num_units, size), jnp.float32),
        "bias": jnp.zeros(size, jnp.float32),
    }


def lstm(inputs: Array, parameters: Mapping[str, Array]) -> Array:
    """One LSTM layer over whole sequences, from a zero state.

    The equations stand at the top of this file. Works under `jit`, `vmap` (parameters batched or
    not), `jax.checkpoint` and inside `scan` and `while_loop`; differentiable to any order in
    reverse mode. `jax.jvp` of `jax.grad` (Hessian-vector products) works, but `jax.jvp` of the
    layer itself does not, because a `jax.custom_vjp` has no forward rule: use
    `jax.jvp(jax.grad(loss), ...)`, never `jax.grad` of a function that calls `jax.jvp`.

    Args:
      inputs: [B, T, F].
      parameters: as `init_lstm` makes them, of the same dtype as `inputs`.

    Returns:
      The outputs h_1, ..., h_T, [B, T, H].

    Example:
      >>> parameters = init_lstm(jax.random.key(0), num_features=8, num_units=16)
      >>> lstm(jnp.ones((4, 80, 8), jnp.float32), parameters).shape
      (4, 80, 16)
    """
    projected = _project(inputs, parameters)
    return jnp.swapaxes(_recur(projected, parameters["recurrent_kernel"]), 0, 1)


def gru(inputs: Array, parameters: Mapping[str, Array]) -> Array:
    """One GRU layer over whole sequences, from a zero state.

    The equations stand at the top of this file. It works under the same transformations as `lstm`,
    and like it not under `jax.jvp` of the layer itself.

    Args:
      inputs: [B, T, F].
      parameters: as `init_gru` makes them, of the same dtype as `inputs`.

    Returns:
      The outputs h_1, ..., h_T, [B, T, H].

    Example:
      >>> parameters = init_gru(jax.random.key(0), num_features=8, num_units=16)
      >>> gru(jnp.ones((4, 80, 8), jnp.float32), parameters).shape
      (4, 80, 16)
    """
    projected = _project(inputs, parameters)
    recurrent = parameters["recurrent_kernel"], parameters["recurrent_bias"]
    return jnp.swapaxes(_recur_gru(projected, *recurrent), 0, 1)


def _project(inputs: Array, parameters: Mapping[str, Array]) -> Array:
    """Maps x [B, T, F] to x W + b [T, B, GH]."""
    num_sequences, num_positions, _ = inputs.shape
    # Flat matrices, here and in the backward pass: contracting positions and sequences as two axes
    # made a step of the small model 1.15 times as long, under `vmap` and without.
    rows = _flat(jnp.swapaxes(inputs, 0, 1))  # [T B, F]
    projected = rows @ parameters["input_kernel"] + parameters["bias"][None, :]
    return projected.reshape(num_positions, num_sequences, parameters["bias"].size)


@jax.custom_vjp
def _recur(projected: Array, recurrent_kernel: Array) -> Array:
    """Maps x W + b [T, B, 4H] to the outputs [T, B, H]."""
    outputs, _ = _recur_forward(projected, recurrent_kernel)
    return outputs


def _recur_forward(projected: Array, recurrent_kernel: Array) -> tuple[Array, Residuals]:
    """Runs the cell over time; keeps outputs, cells and gates for the backward scan."""

    def step(state: tuple[Array, Array], z: Array) -> tuple[tuple[Array, Array], tuple]:
        hidden, cell = state
        i, f, g, o = jnp.split(z + hidden @ recurrent_kernel, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        cell = f * cell + i * g
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, (i, f, g, o))

    # `zeros_like`, because under `shard_map` the state must vary over the mesh as `projected` does.
    shape = (projected.shape[1], recurrent_kernel.shape[0])
    zeros = jnp.zeros_like(projected, shape=shape)
    # Unrolling by 2 or 4 gained nothing (0.9 to 1.0 times the speed) and compiles longer.
    _, (outputs, cells, gates) = lax.scan(step, (zeros, zeros), projected)
    return outputs, (recurrent_kernel, outputs, cells, gates)


def _recur_backward(residuals: Residuals, output_gradients: Array) -> tuple[Array, Array]:
    """Maps h' [T, B, H] to the gradients of `projected` and `recurrent_kernel`."""
    recurrent_kernel, outputs, cells, gates = residuals
    zeros = jnp.zeros_like(outputs, shape=outputs.shape[1:])
    # Transposed outside the scan: the contraction with U inside it made a step 1.4 to 1.5 times
    # as long, because the CPU back end then reorders U at every position.
    transposed_kernel = recurrent_kernel.T

    def step(later: tuple[Array, Array], now: tuple) -> tuple[tuple[Array, Array], Array]:
        later_hidden, later_cell = later
        output_gradient, cell, previous_cell, (i, f, g, o) = now
        tanh_cell = jnp.tanh(cell)
        d_hidden = output_gradient + later_hidden
        d_cell = later_cell + d_hidden * o * (1 - tanh_cell * tanh_cell)
        d_i = d_cell * g * i * (1 - i)
        d_f = d_cell * previous_cell * f * (1 - f)
        d_g = d_cell * i * (1 - g * g)
        d_o = d_hidden * tanh_cell * o * (1 - o)
        d_projected = jnp.concatenate([d_i, d_f, d_g, d_o], axis=-1)
        return (d_projected @ transposed_kernel, d_cell * f), d_projected

    positions = (output_gradients, cells, _delayed(cells), gates)
    _, d_projected = lax.scan(step, (zeros, zeros), positions, reverse=True)
    return d_projected, _flat(_delayed(outputs)).T @ _flat(d_projected)


@jax.custom_vjp
def _recur_gru(projected: Array, recurrent_kernel: Array, recurrent_bias: Array) -> Array:
    """Maps x W + b [T, B, 3H] to the outputs [T, B, H]."""
    outputs, _ = _recur_gru_forward(projected, recurrent_kernel, recurrent_bias)
    return outputs


def _recur_gru_forward(
    projected: Array, recurrent_kernel: Array, recurrent_bias: Array
) -> tuple[Array, GRUResiduals]:
    """Runs the cell over time; keeps outputs, gates and a for the backward scan."""

    def step(hidden: Array, now: Array) -> tuple[Array, tuple[Array, Gates]]:
        recurrent = hidden @ recurrent_kernel + recurrent_bias[None, :]
        of_inputs, of_hidden = jnp.split(now, 3, axis=-1), jnp.split(recurrent, 3, axis=-1)
        r = jax.nn.sigmoid(of_inputs[0] + of_hidden[0])
        z = jax.nn.sigmoid(of_inputs[1] + of_hidden[1])
        a = of_hidden[2]
        n = jnp.tanh(of_inputs[2] + r * a)
        hidden = (1 - z) * n + z * hidden
        return hidden, (hidden, (r, z, n, a))

    zeros = jnp.zeros_like(projected, shape=(projected.shape[1], recurrent_kernel.shape[0]))
    _, (outputs, gates) = lax.scan(step, zeros, projected)
    return outputs, (recurrent_kernel, outputs, gates)


def _recur_gru_backward(
    residuals: GRUResiduals, output_gradients: Array
) -> tuple[Array, Array, Array]:
    """Maps h' [T, B, H] to the gradients of `projected`, `recurrent_kernel`, `recurrent_bias`."""
    recurrent_kernel, outputs, gates = residuals
    transposed_kernel = recurrent_kernel.T

    def step(later_hidden: Array, now: tuple) -> tuple[Array, tuple[Array, Array]]:
        output_gradient, previous_hidden, (r, z, n, a) = now
        d_hidden = output_gradient + later_hidden
        d_n = d_hidden * (1 - z) * (1 - n * n)
        d_z = d_hidden * (previous_hidden - n) * z * (1 - z)
        d_r = d_n * a * r * (1 - r)
        d_recurrent = jnp.concatenate([d_r, d_z, d_n * r], axis=-1)
        return d_hidden * z + d_recurrent @ transposed_kernel, (d_recurrent, d_n)

    zeros = jnp.zeros_like(outputs, shape=outputs.shape[1:])
    previous = _delayed(outputs)
    _, (d_recurrent, d_n) = lax.scan(
        step, zeros, (output_gradients, previous, gates), reverse=True
    )
    num_units = outputs.shape[-1]
    d_projected = jnp.concatenate([d_recurrent[..., : 2 * num_units], d_n], axis=-1)
    rows = _flat(d_recurrent)
    return d_projected, _flat(previous).T @ rows, rows.sum(axis=0)


def _flat(sequence: Array) -> Array:
    """Maps [T, B, N] to [T B, N]."""
    return sequence.reshape(-1, sequence.shape[-1])


def _delayed(sequence: Array) -> Array:
    """Shifts [T, B, H] by one position: 0, s_1, ..., s_{T-1}."""
    return jnp.concatenate([jnp.zeros_like(sequence[:1]), sequence[:-1]])


_recur.defvjp(_recur_forward, _recur_backward)
_recur_gru.defvjp(_recur_gru_forward, _recur_gru_backward)
