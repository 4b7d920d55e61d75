"""Completion of command lines: a script that says everything the parser knows, so that nothing of this package runs at a Tab."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping

from ..networks import NETWORKS
from ..planning.device_models import DEVICE_MODELS
from ..solvers import methods

SHELLS = ("bash", "zsh")

_TEMPLATE = """\
_checkmate() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} option= command= number
    for ((number = 1; number < COMP_CWORD; number++)); do
        case ${{COMP_WORDS[number]}} in
            -*) [[ -z $command ]] || option=${{COMP_WORDS[number]}} ;;
            *) [[ -n $command ]] || command=${{COMP_WORDS[number]}} ;;
        esac
    done
    local last=${{COMP_WORDS[COMP_CWORD-1]}}
    COMPREPLY=()
    if [[ $word != -* ]]; then
        case $last in
{values}
        esac
        case $option in
{lists}
        esac
    fi
    case $command in
        '') {commands} ;;
{options}
    esac
}}
complete -o bashdefault -o default -F _checkmate checkmate
"""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell; files are what it completes where nothing else is known."""
    commands = {name: one._actions for name, one in _commands(parser).items()}  # argparse has no public list of them
    values = {"--method": methods(), "--device-model": list(DEVICE_MODELS), "--order": ["given", "any"]}
    others = {
        option
        for actions in commands.values()
        for action in actions
        if action.nargs != 0 and action.dest != "methods"
        for option in action.option_strings
        if option not in values
    }
    cases = [f"            {option}) {_reply(words)}; return ;;" for option, words in values.items()]
    text = _TEMPLATE.format(
        values="\n".join([*cases, f"            {'|'.join(sorted(others))}) return ;;"]),
        lists=f"            --methods) {_reply(methods())}; return ;;",
        commands=_reply([*commands, "--help", "--version"]),
        options="\n".join(f"        {name}) {_body(actions)} ;;" for name, actions in commands.items()),
    )
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text


def _body(actions: Iterable[argparse.Action]) -> str:
    """Options of a command where a word begins like one, else what its arguments can be besides files."""
    options = [option for action in actions for option in action.option_strings]
    words = [word for action in actions for word in (*(action.choices or ()), *(NETWORKS if action.dest == "graph" else ()))]
    return f"if [[ $word == -* ]]; then {_reply(options)}; else {_reply(words)}; fi"


def _reply(words: Iterable[str]) -> str:
    return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(words))} -- "$word"))'


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return subparsers.choices
