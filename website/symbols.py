"""What the symbols of the methods' formulas mean, on each page those that its own formulas have."""

from __future__ import annotations

import re

# A letter, Latin or Greek, with its index; and what is no letter, though it is written with some.
GREEK = "alpha|beta|gamma|Delta|epsilon|zeta|eta|theta|mu|sigma|tau|Omega"
TOKEN = re.compile(
    rf"(?P<base>\\(?:{GREEK})(?![A-Za-z])|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])'?)"
    rf"(?:_(?P<index>\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\\[A-Za-z]+|\w))?"
)
NO_LETTERS = re.compile(
    rf"\\(?:text|operatorname)\{{[^{{}}]*\}}|\\(?!(?:{GREEK})(?![A-Za-z]))[A-Za-z]+"
)
# Letters that count something, alone and as an index.
COUNTING = "ijkt"

# Symbol -> meaning. Of another index, such as m_0, it is that of the round's, or of none.
COMMON = {
    "x_t": "the server's model in round $t$",
    "x_{i,k}": "the model of client $i$ after $k$ local steps",
    "y_{i,k}": "the model of client $i$ after $k$ local steps",
    "K_i": "the number of local steps of client $i$",
    "g_{i,k}": "the gradient of the loss of a minibatch of client $i$ at $x_{i,k}$",
    "f_i": "the mean loss of client $i$",
    "z": "a minibatch, the loss of which follows a semicolon",
    "z'": "a fresh minibatch",
    "p_i": "the weight of client $i$ divided by the sum over the clients that answered",
    r"\Delta_t": "the mean of what the clients' models have moved by their local steps, weighted "
    "as `weighting` says",
    "c": "the mean of the clients' gradients of their whole data at the server's model",
    "U": "the direction of the base optimizer",
    "V": "what the base optimizer makes of its statistics",
    "s": "the statistics of the base optimizer, its momentum for example",
    "m_t": r"the running mean of $\Delta_t$, the momentum, which begins at 0",
    "v_t": r"the running mean of the squares of $\Delta_t$",
    r"\gamma": "the client learning rate, `client_learning_rate`",
    r"\eta_l": "the client learning rate, `client_learning_rate`",
    r"\eta": "the server learning rate, `server_learning_rate`",
    r"\tau": "`adaptivity`",
    r"\beta_1": "`momentum`",
    r"\beta_2": "`second_moment_decay`",
    "t": "the round",
    "i": "a client",
    "k": "a local step",
    "K": "the number of local steps",
}
# Method -> what differs there.
STEP_BEFORE = {
    "x_{i,k}": "the model of client $i$ before its $k$-th gradient, of $K$",
    "K": "the number of gradients",
}
OWN = {
    "adaalter": {
        "x": "the server's model",
        "x_i": "that of client $i$",
        "g": "the gradient of a minibatch of the client at $x_i$",
        "B": "the root of the accumulator that all clients had at the last synchronisation",
        "A_i": "the root of the client's own, to which its squared gradients are added",
        "t'": "the number of the local step since the synchronisation",
        r"\epsilon": "`adaptivity`",
    },
    "centralised": {
        "x": "the model",
        "g": "the gradient of a minibatch of the pool at $x$",
    },
    "cmime": {
        "g": "the corrected gradient",
        "s_i": "the copy that client $i$ has of the statistics of the base optimizer",
    },
    "fedadabound": {"s": "`final_scale`", "b": "`bound_rate`"},
    "fedadagrad": {"v_t": r"the sum of the squares of $\Delta_t$, and what it begins with"},
    "fedamsgrad": {"v_t": r"the running mean of the squares of $\Delta_t$, $\hat v_t$ its largest"},
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
    "local_adam": {
        "m_{i,k}": "the running mean of the gradients of client $i$",
        "v_{i,k}": "that of their squares",
        "m_t": "the mean that every client begins round $t$ with",
        "v_t": "that of the squares",
    },
    "local_update": {
        **STEP_BEFORE,
        "q_i": "what client $i$ sends",
        r"\theta_k": r"the weight of the $k$-th gradient, see `gradient_weights`",
    },
    "lookahead": {
        "x_t": "the slow weights in round $t$",
        "x_K": r"the fast weights after $K$ local steps from there, $x \leftarrow x - \gamma\, g$ "
        r"with $\gamma$ the `client_learning_rate` and $g$ the gradient of a minibatch",
        r"\alpha": "`slow_weights_step`",
    },
    "maml": {
        "x": "a model to start from",
        "x_{i,k}": "the model that client $i$ comes to from there by $k$ steps of SGD with the "
        "`client_learning_rate`, of which it takes $K$",
        "m_i": "the loss of client $i$ after them, as a function of where they began; its upper "
        "index is their number",
        "f_i": "the mean loss of client $i$ on a minibatch",
    },
    "mimemvr": {
        "x": "the server's model: $x^{t-1}$ the current one in round $t$, $x^{t-2}$ that before",
        "y": "the client's, which begins at $y_0$",
        "c": "the mean of the clients' gradients of their whole data at $x^{t-2}$",
        "g": "that at $x^{t-1}$",
        "m": "the momentum, with the round it is of as its upper index",
        "a": "`momentum_weight`",
        "S_t": "the clients that take part in round $t$",
    },
    "minibatch_sgd": {"g_i": "the gradient of one minibatch of client $i$"},
    "pfnm": {
        r"\theta_i": "the weights of the global hidden unit $i$",
        "v": r"the weights of a hidden unit of a client, $v \to i$ one that is matched with $i$",
        r"\sigma": "the root of `variance`",
        r"\sigma_0": "the root of `prior_variance`",
        "i": "a unit of the global network",
    },
    "scaffold": {
        "c": "the server's control variate",
        "c_i": "that of client $i$, $c_i^+$ the new one",
        "S": "the set of clients that answered",
        "N": "the number of all clients",
    },
    "elastic": {
        "x": "the server's model, of which $i$ counts the coordinates",
        "F": "the model's outputs",
        "z": "an example held out from training",
        "g": "the gradient of their squared length, summed over a batch; its size $|g|$ is taken "
        "coordinate by coordinate",
        r"\Omega_k": "the sensitivity of the outputs of client $k$ to each coordinate",
        r"\Omega": r"their mean, $\Omega^i$ its coordinate $i$",
        r"\mu": "`sensitivity_decay`",
        "p_k": "the weight of client $k$ divided by the sum over the clients that answered",
        r"\zeta": "what each coordinate of the mean change is multiplied by",
        r"\tau": "`elasticity`",
        "i": "a coordinate",
        "k": "a client",
    },
    "local_update_decay": {
        "l_t": r"the mean loss of the server's model in round $t$, $\hat l_t$ that of the last "
        "rounds, `window` of them",
        "l_j": r"the same in round $j$",
        r"\Delta": "`threshold`",
        r"\alpha": "`client_decay`",
        r"\beta": "`server_decay`",
        "t": "the round",
        "j": "a round before it",
    },
}


def paragraph(name: str, formulas: str) -> str:
    """What the symbols of a method's formulas mean.

    Raises:
      ValueError: one is explained nowhere.
    """
    own = OWN.get(name, {})
    meanings = {**own, **COMMON, **own}  # its own first; letters that count come last
    found = {_explained(one, meanings, name) for one in occurring(formulas)}
    order = sorted(found, key=lambda one: (one in COUNTING, list(meanings).index(one)))
    said = [f"${one}$: {meanings[one]}" for one in order]
    parts = [f"**Symbols.** {'; '.join(said)}."]
    if r"\sqrt" in formulas:
        parts.append("Products, squares, roots and quotients are coordinate by coordinate.")
    parts.append("What other libraries do: [conventions](../notebook/conventions.md).")
    return " ".join(parts)


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


def _explained(symbol: str, meanings: dict[str, str], name: str) -> str:
    """The entry that explains a symbol."""
    base = symbol.partition("_")[0]
    for one in (symbol, f"{base}_t", base):
        if one in meanings:
            return one
    raise ValueError(f"Of the formulas of {name} nothing explains {symbol}; see {__file__}.")
