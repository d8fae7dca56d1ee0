"""Mistakes in a train.yaml, in overrides of it, and in what its parts are together."""

from __future__ import annotations

from .case import SIMULATE, TRAIN, Case, override

TRAIN_YAML = [
    Case("unknown key", "there is no such key", "line 3: step:", "mean steps?", yaml="batch_size: 8\n\nstep: 3\n"),
    Case(
        "unknown nested key",
        "there is no such key",
        "line 4: log.evry:",
        "mean log.every?",
        yaml="steps: 3\nbatch_size: 8\nlog:\n  evry: 3\n",
    ),
    Case(
        "key of another section",
        "there is no such key",
        "line 1: learning_rate:",
        "mean optimizer.learning_rate?",
        yaml="learning_rate: 3\nsteps: 3\nbatch_size: 8\n",
    ),
    Case(
        "key of another choice",
        "there is no such key",
        "line 3: data.path:",
        "another choice of data.name; allowed here: skip, name, tokenizer",
        yaml="steps: 3\nbatch_size: 8\ndata: {name: python_source, path: a.txt}\n",
    ),
    Case(
        "unknown key in a list of sections",
        "there is no such key",
        "line 3: callbacks.0.option:",
        "did you mean callbacks.0.options?",
        yaml="steps: 3\nbatch_size: 8\ncallbacks: [{name: 'a:B', option: {}}]\n",
    ),
    Case(
        "a callback that is no code",
        "(it is 'early_stop')",
        "line 3: callbacks.0.name:",
        "must be package.module:attribute",
        yaml="steps: 3\nbatch_size: 8\ncallbacks: [early_stop]\n",
    ),
    Case("wrong type", "(it is 'many')", "line 1: steps:", "a whole number", yaml="steps: many\nbatch_size: 8\n"),
    Case(
        "unknown preset of flags",
        "there is no preset turbo",
        "launch.xla:",
        "TPUs have latency_hiding, ",
        override("launch.xla=[latency_hiding, turbo]"),
        also=("GPUs have latency_hiding, pipelined_",),
    ),
    Case(
        "preset of flags for other devices",
        "pipelined_collectives is not a preset for v3-32, which has TPUs",
        "launch.xla:",
        "or launch.xla=[] for none",
        ("--slice", "v3-32", "--simulate", "train.yaml", "batch_size=32", "launch.xla=pipelined_collectives"),
    ),
    Case(
        "number where text belongs",
        "(it is 1)",
        "line 3: launch.env.A:",
        "put it in quotes",
        yaml="steps: 3\nbatch_size: 8\nlaunch: {env: {A: 1}}\n",
    ),
    Case(
        "name of a variable",
        "must not be empty or contain =",
        "line 3: launch.env.A=B:",
        "the name of an environment variable",
        yaml="steps: 3\nbatch_size: 8\nlaunch: {env: {A=B: x}}\n",
    ),
    Case(
        "NUL",
        "the character \\0",
        "train.yaml: not valid YAML: line 3, column 19",
        "cannot be in a path",
        yaml='steps: 3\nbatch_size: 8\nlaunch: {workdir: "a\\0b"}\n',
    ),
    Case(
        "value where a section belongs",
        "(it is 3)",
        "line 3: log:",
        "must be a section with some of the keys every, ",
        yaml="steps: 3\nbatch_size: 8\nlog: 3\n",
    ),
    Case("required key", "required", "batch_size:", "required, but not given", yaml="steps: 3\n"),
    Case(
        "several mistakes",
        "4 mistakes",
        "line 1: steps: must be greater than 0",
        "mean model.layers?",
        yaml="steps: 0\nbatch_size: 1.5\nmodel: {layer: 2}\nschedule: {name: cos}\n",
        also=(
            "line 2: batch_size: must be a whole number or 'all' (it is 1.5)",
            "one of cosine, linear, constant, wsd, or package.module:attribute (it is 'cos')",
        ),
    ),
    Case(
        "many mistakes",
        "42 mistakes",
        "line 1: key0:",
        "and 33 more",
        yaml="".join(f"key{n}: {n}\n" for n in range(40)),
    ),
    Case(
        "malformed YAML",
        "not valid YAML",
        "train.yaml: not valid YAML: line 2, column 6",
        "expected ',' or '}'",
        yaml="model: {layers: 1\nsteps: 3\n",
    ),
    Case("tab", "not valid YAML", "line 2, column 1", "spaces, not tabs", yaml="log:\n\tevery: 3\n"),
    Case(
        "alias inside of itself",
        "not valid YAML",
        "train.yaml",
        "one contains itself",
        yaml="log: &a {every: *a}\nsteps: 3\nbatch_size: 8\n",
    ),
    Case(
        "list inside of itself",
        "not valid YAML",
        "train.yaml",
        "one contains itself",
        yaml="steps: 3\nbatch_size: 8\nmodel: {name: 'a:b', options: &a {x: [*a]}}\n",
    ),
    Case(
        "impossible date",
        "cannot be read",
        "train.yaml",
        "in quotes",
        yaml="steps: 3\nbatch_size: 8\nlaunch: {slice: 2026-13-01}\n",
    ),
    Case(
        "duplicated key",
        "'steps' is given twice",
        "line 3, column 1",
        "keep one of them",
        yaml="steps: 3\nbatch_size: 8\nsteps: 4\n",
    ),
    Case("empty file", "is empty", "train.yaml", "`podrun schema` lists the keys", yaml="# nothing\n"),
    Case("not a mapping", "holds a list", "train.yaml", "not `key: value` lines", yaml="- steps: 3\n"),
    Case("binary file", "is not a text file", "train.yaml", "give the train.yaml", yaml=b"\x89PNG\r\n\x1a\n\x00\xff"),
    Case("missing train.yaml", "No such file", "trian.yaml", "mean train.yaml?", args=(*SIMULATE, "trian.yaml")),
    Case(
        "folder as train.yaml", "Is a directory", "cannot read the job", "path of a train.yaml", args=(*SIMULATE, ".")
    ),
    Case("misspelled command", "did you mean slices", "'slice'", "`podrun --help`", args=("slice",)),
    Case("command after its options", "a command comes before", "check", "podrun check", args=("--simulate", "check")),
    Case(
        "a program without dashes",
        "is a program",
        "a.py",
        "-- python a.py",
        args=(*SIMULATE, "a.py"),
        files={"a.py": ""},
    ),
    Case("a program in PATH without dashes", "is a program", "true", "-- true x", args=(*SIMULATE, "true", "x")),
    Case("no program", "no program", "after the `--`", "`podrun run --help`", args=(*SIMULATE, "--")),
    Case("a program without a name", "is empty", "after `--`", "name a program", args=(*SIMULATE, "--", "")),
]
OVERRIDES = [
    Case("malformed", "'steps' on the command line is not", "on the command line", "key.path=value", override("steps")),
    Case("before the file", "steps=3", "cannot read the job", "comes first", (*SIMULATE, "steps=3", "train.yaml")),
    Case(
        "unknown key in override",
        "no such key",
        "command line: model.layer:",
        "model.layers?",
        override("model.layer=3"),
    ),
    Case("below a scalar", "steps is 6", "'steps.x=4' on the command line", "steps=value", override("steps.x=4")),
    Case("value that is no YAML", "expected ',' or ']'", "'steps=[1' on the", "line 1", override("steps=[1")),
    Case(
        "mistake within a section", "(it is 0)", "command line: log.every", "greater than 0", override("log={every: 0}")
    ),
    Case(
        "NaN",
        "(it is nan)",
        "command line: optimizer.learning_rate",
        "finite",
        override("optimizer.learning_rate=.nan"),
    ),
]
MODEL_AND_SIZES = [
    Case(
        "unknown model",
        "(it is 'gpt3')",
        "model.name",
        "one of gpt2, decoder, cnn, mlp, linear, or package",
        override("model=gpt3"),
    ),
    Case("preset as model", "'gpt2-xl'", "model.name", "model.preset=gpt2-xl?", override("model=gpt2-xl")),
    Case("plugin", "(it is 'a:b:c')", "model.name", "must be package.module:attribute", override("model=a:b:c")),
    Case(
        "heads",
        "width 32 is not divisible by heads 5",
        "line (model.heads): model",
        "30 or 35",
        override("model.heads=5"),
    ),
    Case(
        "heads of keys and values",
        "heads 4 is not divisible by kv_heads 3",
        "command line (model.heads, model.kv_heads): model",
        "kv_heads may be 1, 2, 4",
        override("model.name=decoder", "model.kv_heads=3", "model.heads=4", "model.window=8"),
        also=("2 mistakes", "command line (model.window): model: window 8 is for sliding layers"),
    ),
    Case(
        "keys of a choice",
        "1 mistake",
        "line 3: model.heads, context: there",
        "name, layers,",
        override("model.name=mlp"),
    ),
    Case("no section", "must be a section", "command line: sample", "sample.tokens=0", override("sample=null")),
    Case("final", "final 0.1 is above", "optimizer.learning_rate 0.001", "lower one", override("schedule.final=0.1")),
    Case("batch", "not divisible by 3 devices", "batch_size 8", "6 or 9", ("-s", "cpu-1x3", *override()[2:])),
    Case("small batch", "too small for 16", "batch_size 8", "batch_size=16", ("-s", "cpu-2x8", *override()[2:])),
    Case("parts", "by 1 device x accumulate 3", "batch_size 8", "6 or 9", override("accumulate=3")),
]
CLASSIFY = "task: classification\ndata: digits\nsteps: 6\nbatch_size: 8\n"
LOGISTIC = "task: logistic_regression\nsteps: 6\n"


def parallel(name: str, what: str, where: str, remedy: str, text: str, *also: str, slice: str = "cpu-2x4") -> Case:
    """Job made from `text`, on a slice of eight devices."""
    return Case(name, what, where, remedy, ("-s", slice, "--simulate", TRAIN), yaml=text, also=also)


PARALLEL = [
    parallel(
        "unknown strategy",
        "one of pmap, jit, explicit, shard_map, single, ensemble, or package.module:attribute",
        "line 5: parallel.name:",
        "(it is 'hogwild')",
        CLASSIFY + "parallel: hogwild\n",
    ),
    parallel(
        "mesh of an ensemble",
        "ensemble takes no mesh, because every device holds a whole model",
        "line 5: parallel:",
        "remove it, or take parallel.name=jit or explicit",
        CLASSIFY + "parallel: {name: ensemble, mesh: {fsdp: 2}}\n",
    ),
    Case(
        "mesh of pmap",
        "pmap takes no mesh",
        "command line: parallel:",
        "take parallel.name=jit or explicit",
        override("parallel.mesh.fsdp=2"),
    ),
    parallel(
        "fsdp and devices",
        "does not divide the 8 devices of the slice",
        "parallel.mesh.fsdp 3",
        "it can be 1, 2, 4, 8",
        CLASSIFY + "parallel: {name: jit, mesh: {fsdp: 3}}\n",
    ),
    parallel(
        "mesh and devices",
        "data 2 x fsdp 2 = 4 places, but the slice has 8 devices",
        "parallel.mesh",
        "data: -1",
        CLASSIFY + "parallel: {name: explicit, mesh: {data: 2, fsdp: 2}}\n",
    ),
    parallel(
        "mesh and batch",
        "batch_size 9 is not divisible by 8 devices",
        "parallel.mesh.fsdp 3 does not divide",
        "8 or 16",
        CLASSIFY.replace("8", "9") + "parallel: {name: jit, mesh: {fsdp: 3}}\n",
        "it can be 1, 2, 4, 8",
    ),
    parallel(
        "key of the mesh",
        "no such key",
        "line 5: parallel.mesh.fdsp:",
        "mean parallel.mesh.fsdp?",
        CLASSIFY + "parallel: {name: jit, mesh: {fdsp: 2}}\n",
    ),
    parallel(
        "ensemble of copies",
        "ensemble of linear models, which all start from zeros",
        "line 5: parallel:",
        "take another model",
        CLASSIFY + "parallel: ensemble\nmodel: linear\n",
    ),
    parallel(
        "layout of an optimizer",
        "does not know the shardings of what muon computes",
        "line 5: parallel:",
        "take parallel.name=jit, or fsdp: 1",
        CLASSIFY + "parallel: {name: explicit, mesh: {fsdp: 2}}\noptimizer: muon\n",
    ),
    parallel(
        "model and data of a task",
        "model: gpt2 does not fit task classification",
        "line 5: model: gpt2",
        "takes cnn, mlp, linear or package.module:attribute",
        CLASSIFY.replace("digits", "sine") + "model: gpt2\n",
        "line 2: data: sine does not fit",
        "takes digits, idx, make_classification",
    ),
    parallel(
        "what L-BFGS cannot use",
        "3 mistakes",
        "line 3: batch_size 8: lbfgs compares losses",
        "give batch_size: all, or another optimizer",
        LOGISTIC + "batch_size: 8\naccumulate: 2\nschedule: {name: constant}\n",
        "line 4: accumulate: lbfgs evaluates the whole batch at once; remove it",
        "line 5: schedule: lbfgs determines the size of its steps itself; remove the schedule",
    ),
    parallel(
        "L-BFGS with dropout",
        "dropout changes the network at each step",
        "line 5: model.dropout 0.5: lbfgs compares losses",
        "remove it, or take another optimizer",
        CLASSIFY.replace("8", "all") + "model: {name: mlp, dropout: 0.5}\noptimizer: lbfgs\n",
    ),
    parallel(
        "line search",
        "or line_search: null and a fixed step_size",
        "line 3: optimizer:",
        "give line_search: zoom or backtracking",
        LOGISTIC + "optimizer: {line_search: null}\n",
    ),
    Case(
        "all of a text",
        "batch_size: all needs examples that stay the same",
        "command line: batch_size",
        "a text is cut into new windows",
        override("batch_size=all"),
    ),
]
