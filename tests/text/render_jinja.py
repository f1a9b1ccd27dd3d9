"""Renders chat templates with Python's jinja2, set up as Hugging Face does it: the truth our engine is held to.

Reads a JSON array of {"template", "variables"} from the file named first; prints a JSON array of {"text"} or {"error"}.
"""
import datetime
import json
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} … {% endgeneration %}: a scope that prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = strftime_now


def render(case):
    try:
        return {"text": environment.from_string(case["template"]).render(**case["variables"])}
    except Exception as e:  # any: the engine must refuse what Python refuses
        return {"error": f"{type(e).__name__}: {e}"}


with open(sys.argv[1], encoding="utf-8") as f:
    cases = json.load(f)
results = json.dumps([render(case) for case in cases], ensure_ascii=False)
sys.stdout.buffer.write(results.encode("utf-8", "replace"))
