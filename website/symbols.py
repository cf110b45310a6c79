"""The meaning of the symbols in the methods' formulas; a page lists those that it uses."""

from __future__ import annotations

import re

# A Latin or Greek letter with its index; and commands that are not letters.
GREEK = "alpha|beta|gamma|Delta|delta|epsilon|zeta|eta|theta|Theta|lambda|mu|xi|rho|sigma|tau|Omega"
TOKEN = re.compile(
    rf"(?P<base>\\(?:{GREEK})(?![A-Za-z])|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])'?)"
    rf"(?:_(?P<index>\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\\[A-Za-z]+|\w))?"
)
NO_LETTERS = re.compile(
    rf"\\(?:text|operatorname)\{{[^{{}}]*\}}|\\(?!(?:{GREEK})(?![A-Za-z]))[A-Za-z]+"
)
# Letters that count something, alone and as an index.
COUNTING = "ijkt"

# Symbol -> meaning. A symbol with another index, such as m_0, has the meaning of m_t, or of m.
COMMON = {
    "x_t": "the server's model in round $t$",
    "x_{i,k}": "the model of client $i$ after $k$ local steps",
    "y_{i,k}": "the model of client $i$ after $k$ local steps",
    "K_i": "the number of local steps of client $i$",
    "g_{i,k}": "the gradient of the loss of a minibatch of client $i$ at $x_{i,k}$",
    "f_i": "the mean loss of client $i$",
    "z": "a minibatch; $f(x; z)$ is the loss on it at $x$",
    "z'": "a fresh minibatch",
    "p_i": "the weight of client $i$, divided by the sum over the clients that answered",
    r"\Delta_t": "the weighted mean of the changes of the clients' models in round $t$ "
    "(weights: `weighting`)",
    "c": "the mean gradient of the clients, over all their examples, at the server's model",
    "U": "the direction of the base optimizer",
    "V": "the base optimizer's update of its statistics",
    "s": "the statistics of the base optimizer, such as momentum",
    "m_t": r"the momentum, a running mean of $\Delta_t$ that starts at 0",
    "v_t": r"the second moment, a running mean of $\Delta_t^2$",
    r"\gamma": "the client learning rate, `client_learning_rate`",
    r"\eta_l": "the client learning rate, `client_learning_rate`",
    r"\eta": "the server learning rate, `server_learning_rate`",
    r"\tau": "`adaptivity`",
    r"\beta_1": "`momentum`",
    r"\beta_2": "`second_moment_decay`",
    r"\Theta": r"the weights of the gradients of the local steps: $\Theta_1$ has only the first, "
    r"$\Theta_{1:K}$ all $K$ alike, and $\Theta_K$ only the $K$-th",
    "t": "the round",
    "i": "a client",
    "k": "a local step",
    "K": "the number of local steps",
}
# Method -> its own meanings.
STEP_BEFORE = {
    "x_{i,k}": "the model of client $i$ before its $k$-th gradient, of $K$",
    "K": "the number of gradients",
}
OWN = {
    "adaalter": {
        "x": "the server's model",
        "x_i": "the model of client $i$",
        "g": "the gradient of a minibatch of the client at $x_i$",
        "B": "the root of the accumulator at the last synchronisation, equal on all clients",
        "A_i": "the root of the accumulator of client $i$",
        "t'": "the number of the local step since the synchronisation",
        r"\epsilon": "`adaptivity`",
    },
    "afl": {
        r"\lambda": "the weights of the clients, which sum to 1",
        r"\lambda_i": "the weight of client $i$ in the mixture",
        r"\zeta": "`mixture_learning_rate`",
        "F": r"the clients' mean losses over all of their examples, as a vector; $\Pi$ is the "
        "nearest point whose numbers are at least 0 and sum to 1",
    },
    "apfl": {
        "v_i": r"what client $i$ keeps beside the server's model; $\bar v_i$ is its own model",
        r"\alpha_i": "the share of $v_i$ in the client's own model",
        r"\alpha": "`mixture`",
        r"\gamma_\alpha": "`mixture_learning_rate`",
    },
    "centralised": {
        "x": "the model",
        "g": "the gradient of a minibatch of the pool at $x$",
    },
    "cmime": {
        "g": "the corrected gradient",
        "s_i": "the copy of the base optimizer's statistics on client $i$",
    },
    "ditto": {
        "v_i": "the own model of client $i$",
        r"\lambda": "`attraction`",
    },
    "fedac": {
        "x_{i,k}": "the short sequence of client $i$ after $k$ local steps",
        "w_{i,k}": "the long sequence of client $i$ after $k$ local steps",
        "y_{i,k}": "the point between them where the gradient is taken",
        "g_{i,k}": "the gradient of the loss of a minibatch of client $i$ at $y_{i,k}$",
        "w_t": "the long sequence at the start of round $t$",
        r"\zeta": "the long step",
        r"\alpha": "the inverse weight of $y$ in the long sequence",
        r"\beta": "the inverse weight of the long sequence in $y$",
        r"\mu": "`convexity`",
    },
    "fedadmm": {
        "x_i": "the model that client $i$ keeps; $x_i^+$ is the new one",
        "u_i": "the dual variable of client $i$; $u_i^+$ is the new one",
        r"\rho": "`proximal_weight`",
    },
    "feddyn": {
        "h": "the mean of all clients' $h_i$",
        "h_i": "what client $i$ keeps, an estimate of the gradient of its loss",
        r"\alpha": "`proximal_weight`",
        "S": "the set of clients that answered",
        "N": "the number of all clients",
    },
    "fedexp": {
        "d_i": "the change of client $i$",
        r"\eta_t": "the server's step, which is computed",
        r"\epsilon": "`epsilon`",
    },
    "fedrep": {
        "u_t": "the server's shared arrays in round $t$",
        "u_{i,k}": "the shared arrays of client $i$ after $k$ local steps",
        "v_i": "the personal arrays of client $i$",
        "h": "a step of the head",
        r"\tau": "`num_head_steps`",
    },
    "fednova": {
        "a_i": r"the weights of the gradients of client $i$ in its change, whose sum is $|a_i|$",
        r"\mu": "the strength of the proximal term, `proximal_weight`",
    },
    "fedadabound": {"s": "`final_scale`", "b": "`bound_rate`"},
    "fedadagrad": {"v_t": r"the sum of the squares of $\Delta_t$, plus `initial_accumulator`"},
    "fedamsgrad": {"v_t": r"the running mean of $\Delta_t^2$; $\hat v_t$ is its largest so far"},
    "fedavgm": {r"\beta": "`momentum`", "d": "`dampening`"},
    "fedprox": {r"\mu": "the strength of the proximal term, `proximal_weight`"},
    "fedsgd": {
        "x_{i,k}": "the model of client $i$ after $k$ local steps",
        "K_t": "the number of local steps in round $t$",
        "K_0": "`num_local_steps`",
        r"\gamma_t": "the client learning rate in round $t$",
        r"\gamma_0": "`client_learning_rate`",
        r"\eta_t": "the server learning rate in round $t$",
        r"\eta_0": "`server_learning_rate`",
        "d_K": "`steps_decay`",
        r"d_\gamma": "`client_decay`",
        r"d_\eta": "`server_decay`",
    },
    "fomaml": STEP_BEFORE,
    "ifca": {
        "j": "a cluster",
        "u_j": "standard normal noise, like the parameters",
        "z_j": "a model drawn by the model's own initialisation",
        "j_i": "the cluster that client $i$ chooses",
        "x_t": "the models in round $t$; $x_{t,j}$ is that of cluster $j$",
        r"\sigma": "`initial_spread`",
    },
    "local_adam": {
        "m_{i,k}": "the running mean of the gradients of client $i$",
        "v_{i,k}": "the running mean of their squares",
        "m_t": "the mean with which every client starts round $t$",
        "v_t": "the same for the squares",
    },
    "local_update": {
        **STEP_BEFORE,
        "q_i": "what client $i$ sends",
        r"\alpha": "the server learning rate of FedAvg",
        r"\theta_k": r"the weight of the $k$-th gradient, from `gradient_weights`",
    },
    "lookahead": {
        "x_t": "the slow weights in round $t$",
        "x_K": r"the fast weights after $K$ local steps of SGD from $x_t$ with the "
        "`client_learning_rate`",
        r"\alpha": "`slow_weights_step`",
    },
    "maml": {
        "x": "the model from which local steps start",
        "x_{i,k}": "the model of client $i$ after $k$ steps of SGD with the `client_learning_rate`",
        "m_i": "the loss of client $i$ after local steps, as a function of their start; the upper "
        "index is their number",
        "f_i": "the mean loss of client $i$ on a minibatch",
    },
    "mimemvr": {
        "x": "the server's model: $x^{t-1}$ in round $t$, and $x^{t-2}$ before",
        "y": "the client's model, which starts at $y_0$",
        "c": "the mean gradient of the clients, over all their examples, at $x^{t-2}$",
        "g": "the same at $x^{t-1}$",
        "m": "the momentum; the upper index is the round",
        "a": "`momentum_weight`",
        "S_t": "the clients that take part in round $t$",
    },
    "minibatch_sgd": {"g_i": "the gradient of one minibatch of client $i$"},
    "perfedavg": {
        "w": "a client's model",
        "w_{i,k}": r"the model of client $i$ after $k$ local steps; $\tilde w$: after an inner "
        "step",
        "v": r"the gradient at $\tilde w$",
        r"\alpha": "`inner_learning_rate`",
        r"\beta": "`client_learning_rate`",
        r"\delta": "`difference`",
        "D": "a minibatch of the client",
        "D'": "another, the one that FedAvg would take; $D''$ is a third",
    },
    "personal": {
        "u_i": "the shared arrays of client $i$ after its local steps",
        "u_t": "the server's shared arrays in round $t$",
        "v_i": "the personal arrays of client $i$",
    },
    "pfedme": {
        "w": "a client's copy of the server's model",
        "w_{i,k}": "that of client $i$; $w_{i,r}$ is after $r$ local steps",
        r"\theta": "the own model of client $i$",
        r"\lambda": "`attraction`",
        r"\eta": "`client_learning_rate`",
        r"\beta": "`server_learning_rate`",
        r"\rho": "`personal_learning_rate`",
        "r": "the number of the local step, from 0",
        "R": "the number of local steps",
    },
    "pfnm": {
        r"\theta_i": "the weights of the global hidden unit $i$",
        "v": r"the weights of a client's hidden unit; $v \to i$ means that it is matched with $i$",
        r"\sigma": "the root of `variance`",
        r"\sigma_0": "the root of `prior_variance`",
        "i": "a unit of the global network",
    },
    "qfedavg": {
        "q": "`q`",
        "d_i": "the change of client $i$",
        "F_i": "the mean loss of all examples of client $i$",
    },
    "scaffnew": {
        "p": "`communication_probability`",
        "h_i": "the control variate of client $i$",
    },
    "scaffold": {
        "c": "the server's control variate",
        "c_i": "the control variate of client $i$; $c_i^+$ is the new one",
        "S": "the set of clients that answered",
        "N": "the number of all clients",
    },
    "term": {
        "x": "the model",
        r"\tau": "`tilt`",
        "F_i": "the mean loss of all examples of client $i$",
        "w_i": "the weight of client $i$",
        "c": "the weighted mean loss of the round before, which cancels",
    },
    "attacked": {
        "i": "the index of a client in the population",
        "g": "the golden ratio's fraction, 0.618...",
        "r": "a random number in [0, 1), from `attack_seed`",
        "s": "`share`",
    },
    "robust": {
        "R": "the rule, `mean`",
        "u_i": "everything that client $i$ uploads, as one vector",
        "p_i": "the weight of client $i$, divided by the sum over the clients that answered",
        "i": "a client",
    },
    "compressed": {
        "u_i": r"what client $i$ uploads; $\hat u_i$ is what the server decodes",
        "Q": "an unbiased codec",
        "C": "a biased codec",
        "e_i": "what is left over at client $i$ from its last messages",
        "w": "the clients' copy of the model, with `downlink`",
        "t": "the round",
        "i": "a client",
    },
    "private": {
        "u_i": r"what client $i$ uploads; $\hat u_i$ is what is left of it",
        "u": "what the server takes for the mean",
        "C": "`clip`",
        r"\xi_t": "noise, new in each round",
        "E": "the number of exchanges in a round",
        "D": "the expected number of clients in a round",
        "z": "`noise_multiplier`",
        "I": "the identity matrix",
        "N": "the normal distribution",
        r"\eta_C": "`clip_learning_rate`",
        "b": r"the share of clients within the norm; $\tilde b$ has noise",
        "q": "`quantile`",
        "t": "the round",
        "i": "a client",
    },
    "elastic": {
        "x": "the server's model",
        "F": "the model's outputs",
        "z": "an example held out from training",
        "g": "the gradient of the squared norm of the outputs, summed over a batch",
        r"\Omega_k": "the sensitivity that client $k$ measures, for each coordinate",
        r"\Omega": r"the weighted mean of $\Omega_k$; $\Omega^i$ is its coordinate $i$",
        r"\mu": "`sensitivity_decay`",
        "p_k": "the weight of client $k$, divided by the sum over the clients that answered",
        r"\zeta": "the factor of each coordinate of the mean change",
        r"\tau": "`elasticity`",
        "i": "a coordinate",
        "k": "a client",
    },
    "local_update_decay": {
        "l_t": r"the mean loss of the server's model in round $t$; $\hat l_t$ is its mean over the "
        "last `window` rounds",
        "l_j": r"the same in round $j$",
        r"\Delta": "`threshold`",
        r"\alpha": "`client_decay`",
        r"\beta": "`server_decay`",
        "t": "the round",
        "j": "an earlier round",
    },
}


def meanings(name: str, formulas: str) -> str:
    """The symbols of a method's formulas, as a list.

    Raises:
      ValueError: a symbol has no meaning in this file.
    """
    own = OWN.get(name, {})
    known = {**own, **COMMON, **own}  # its own first; letters that count come last
    found = {_explained(one, known, name) for one in occurring(formulas)}
    order = sorted(found, key=lambda one: (one in COUNTING, list(known).index(one)))
    symbols = "\n".join(f"- ${one}$: {known[one]}" for one in order)
    if r"\sqrt" in formulas:
        symbols += "\n\nProducts, squares, roots and quotients are taken coordinate by coordinate."
    return symbols


def occurring(formulas: str) -> list[str]:
    """The symbols of formulas: x_{t+1} as x_t, x_{i,K} as x_{i,k}, and i, k, K and t as well."""
    found: dict[str, None] = {}
    for one in TOKEN.finditer(NO_LETTERS.sub(" ", formulas)):
        index = (one["index"] or "").removeprefix("{").removesuffix("}")
        found[_named(one["base"], index)] = None
        if re.match(rf"[{COUNTING}](?!\w)", index):
            found.update(dict.fromkeys(occurring(index)))
    return list(found)


def _named(base: str, index: str) -> str:
    """A symbol as the tables above have it."""
    if re.match(r"i\s*,", index):
        return f"{base}_{{i,k}}"
    if re.match(r"t\b|-1", index):
        return f"{base}_t"
    return f"{base}_{index}" if index else base


def _explained(symbol: str, known: dict[str, str], name: str) -> str:
    """The key of a symbol's meaning."""
    base = symbol.partition("_")[0]
    for one in (symbol, f"{base}_t", base):
        if one in known:
            return one
    raise ValueError(f"{__file__} has no meaning for {symbol} in the formulas of {name}.")
