"""Options that there are not."""

from __future__ import annotations

from .case import SIMULATE, Case, override

OPTIONS = [
    Case("unknown option", "no such option", "--simulat", "--simulate", ("--simulat", "train.yaml")),
    Case("a command of other tools", "there is no command or job 'list'", "`podrun ps`", "lists the runs", ("list",)),
    Case("no value", "requires an argument", "'--slice'", "`podrun run --help`", ("train.yaml", "--slice")),
    Case(
        "no value of a command", "requires an argument", "'--data'", "`podrun evaluate --help`", ("evaluate", "--data")
    ),
    Case("no value in a group", "requires an argument", "'--zone'", "`podrun tpu up --help`", ("tpu", "up", "--zone")),
    Case("no file", "missing argument", "train.yaml", "`podrun run --help`", SIMULATE),
    Case("option of a command", "no such option", "--jso", "`podrun slices --help`", ("slices", "--jso")),
    Case("slices of no generation", "unknown slice", "'v9'", "v5litepod (v5e), v5p,", ("slices", "v9")),
    Case("slices of GPUs", "unknown slice", "'gpu'", "\nTPU generations: v2, v3", ("slices", "gpu")),
    Case("option for a key", "no such option", "'--steps'", "write steps=100", (*override(), "--steps", "100")),
    Case("dashes", "no such option", "'--batch-size'", "write batch_size=8", (*override(), "--batch-size=8")),
    Case(
        "option of a section",
        "no such",
        "--learning-rate",
        "optimizer.learning_rate=1",
        ("a.yaml", "--learning-rate", "1"),
    ),
    Case(
        "fault",
        "unknown kind 'kil'; did you mean kill?",
        "--inject",
        "allowed: kill, stop",
        (
            *override(),
            "--inject",
            "kil:hots=1@setp=4",
            "--inject",
            "kill:host=7",
            "--inject",
            "nan:process=2@phase=save",
        ),
        also=("unknown key 'hots'; did you mean host?", "did you mean @step?", "no host 7", "cannot occur at @phase"),
    ),
    Case(
        "fault on hosts",
        "reached by ssh",
        "--inject",
        "use --simulate",
        ("--slice", "cpu-1x1", "--hosts", "h1", "--inject", "kill", "train.yaml"),
    ),
    Case("shell", "'tcsh' is not one of", "tcsh", "`podrun completion --help`", ("completion", "tcsh")),
]
