"""The script of `fedax completion`: what a shell completes, without asking fedax each time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.commands import SHELLS, Lists
from fedax.cli.mistyped import options_of
from fedax.cli.parsing import COMMANDS, DATA_COMMANDS
from fedax.cli.plots import KINDS
from fedax.data.getting import WAYS, known_names
from fedax.experiment import sources
from fedax.experiment.build import algorithm_settings, task_settings
from fedax.experiment.config import run_settings
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.sinks import SINKS
from fedax.tasks.registry import TASKS, presets

# What a shell takes as one word; an installed package may call its task by another one.
_WORD = re.compile(r"[\w.+-]+")

_SCRIPT = r"""# Completion of fedax: made by `fedax completion {shell}`.
_fedax_task_keys() {{
  case "$1" in
{task_keys}
  esac
}}

_fedax_method_keys() {{
  case "$1" in
{method_keys}
  esac
}}

_fedax_options() {{
  case "$1" in
{options}
  esac
}}

_fedax() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" first=2
  local tasks="{tasks}" methods="{methods}" data="{data}"
  local option="" words="" place=0 task="" method="" word index
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
    return
  fi
  if [ "$command" = data ]; then
    if [ "$COMP_CWORD" -eq 2 ]; then
      COMPREPLY=($(compgen -W "{data_commands} --help" -- "$current"))
      return
    fi
    command="data-${{COMP_WORDS[2]}}" first=3
  fi
  for ((index = first; index < COMP_CWORD; index++)); do
    word="${{COMP_WORDS[index]}}"
    case "$word" in
      {flags}) option="" ;;
      --*) option="$word" ;;
      *)
        case "$option" in
          "") case "$place" in 0) task="$word" ;; 1) method="$word" ;; esac
            place=$((place + 1)) ;;
          --set|--grid|--search) ;;
          *) [ "$word" = "=" ] || option="" ;;
        esac ;;
    esac
  done
  case "$current" in -*)
    COMPREPLY=($(compgen -W "$(_fedax_options "$command") --help" -- "$current"))
    return ;;
  esac
  case "$option" in
    --set|--grid|--search)
      [ "$current" = "=" ] || [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "=" ] && return
      words="{run_keys} $(_fedax_task_keys "$task") $(_fedax_method_keys "${{method%%,*}}")"
      [ "$option" = --grid ] && words="$words paper"
      COMPREPLY=($(compgen -S = -W "$words" -- "$current"))
      compopt -o nospace 2> /dev/null
      return ;;
    --preset) words="$(_fedax_presets "$task")" ;;
    --log) words="{sinks}" ;;
    --via) words="{ways}" ;;
    "")
      case "$command $place" in
        "run 0"|"sweep 0") words="$tasks" ;;
        "run 1") words="$methods" ;;
        "sweep 1")
          word=""
          case "$current" in *,*) word="${{current%,*}}," ;; esac
          COMPREPLY=($(compgen -P "$word" -W "$methods" -- "${{current##*,}}"))
          return ;;
        "list 0") words="{lists}" ;;
        "list 1") case "$task" in tasks) words="$tasks" ;; algorithms) words="$methods" ;; esac ;;
        "data-get 0"|"data-check 0"|"data-describe 0"|"data-partition 0") words="$data" ;;
        "plot 0") words="{kinds}" ;;
        "reproduce 0") words="{reproductions}" ;;
        "completion 0") words="{shells}" ;;
      esac ;;
  esac
  [ -n "$words" ] && COMPREPLY=($(compgen -W "$words" -- "$current"))
}}

_fedax_presets() {{
  case "$1" in
{presets}
    *) echo "quick paper none" ;;
  esac
}}

complete -o default -F _fedax fedax
"""


def script(shell: str) -> str:
    """The script for a shell; zsh runs that of bash.

    Args:
      shell: one of `SHELLS`.
    """
    tasks = [*TASKS, *filter(_WORD.fullmatch, sources.offered("task"))]
    methods = [*ALGORITHMS, *WRAPPERS, *filter(_WORD.fullmatch, sources.offered("algorithm"))]
    commands = {
        **{name: kind for name, kind in COMMANDS.items() if name != "data"},
        **{f"data-{name}": kind for name, kind in DATA_COMMANDS.items()},
    }
    options = {name: options_of(kind) for name, kind in commands.items()}
    flags = {_flag(name) for of in options.values() for name, flag in of.items() if flag}
    filled = _SCRIPT.format(
        shell=shell,
        commands=" ".join(COMMANDS), data_commands=" ".join(DATA_COMMANDS),
        tasks=" ".join(tasks), methods=" ".join(methods), data=" ".join(known_names()),
        options=_cases({name: map(_flag, of) for name, of in options.items()}),
        flags="|".join(sorted({*flags, "--help"})),
        run_keys=" ".join(run_settings()),
        task_keys=_cases({name: task_settings(name) for name in TASKS}),
        method_keys=_cases({name: algorithm_settings(name) for name in (*ALGORITHMS, *WRAPPERS)}),
        presets=_cases({name: [*presets(name), "none"] for name in TASKS}),
        sinks=" ".join(SINKS), ways=" ".join(WAYS), lists=" ".join(get_args(Lists)),
        kinds=" ".join(KINDS), reproductions=" ".join({**REPRODUCTIONS, **EXPERIMENTS}),
        shells=" ".join(SHELLS),
    )
    loaded = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
    return loaded + filled if shell == "zsh" else filled


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _cases(words: Mapping[str, Iterable[Any]]) -> str:
    """The lines of a `case`, names of the same words together."""
    names: dict[str, list[str]] = {}
    for name, of in words.items():
        names.setdefault(" ".join(map(str, of)), []).append(name)
    return "\n".join(f'    {"|".join(of)}) echo "{text}" ;;' for text, of in names.items())
