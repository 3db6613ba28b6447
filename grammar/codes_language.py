"""Codes of the text itself: SG01xx syntax, SG02xx names, units and types."""

from __future__ import annotations

from sgplan.grammar.code import Code, plan

LANGUAGE_CODES: tuple[Code, ...] = (
    Code(
        "SG0101",
        "no version",
        "A plan starts with `sgplan` and the version of the language, before any block; comments "
        "may stand above. A later sgplan can then read an old plan as it was meant.",
        "sync { bucket = 25MiB }\n",
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0102",
        "unknown version",
        "The file is written in a version of the language that this sgplan does not know. Nothing "
        "else is reported, because every other message might be wrong.",
        "sgplan 2\n\nsync { bucket = 25MiB }\n",
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0103",
        "attribute without a value",
        "Every attribute is `name = value`. Leave an attribute out to get its default.",
        plan("sync { bucket =  overlap = prefer }"),
        plan("sync { bucket = 25MiB  overlap = prefer }"),
    ),
    Code(
        "SG0104",
        "bracket never closed",
        "A block is still open where the text ends or where another block begins. The message "
        "points at the bracket that was opened, which is where the repair usually belongs.",
        plan("sync { bucket = 25MiB\n\nupdate { optimizer = fused }"),
        plan("sync { bucket = 25MiB }\n\nupdate { optimizer = fused }"),
    ),
    Code(
        "SG0105",
        "single quotes",
        "Strings have double quotes; there is one way to write a string.",
        plan("let mlp = 'layers.*.mlp'"),
        plan('let mlp = "layers.*.mlp"'),
    ),
    Code(
        "SG0106",
        "broken string",
        'A string ends on the line on which it starts, and knows two escapes: `\\"` for a quote '
        "and `\\\\` for a backslash.",
        plan('let mlp = "layers.*.mlp'),
        plan('let mlp = "layers.*.mlp"'),
    ),
    Code(
        "SG0107",
        "two words in a row",
        "A value is one expression: one word, number, string, list, selector or call. Two of them "
        "side by side are refused, because one would have to be ignored.",
        plan("sync { overlap = prefer always }"),
        plan("sync { overlap = prefer }"),
    ),
    Code(
        "SG0108",
        "space inside a quantity",
        "Number and unit are one word: `25MiB`, `10s`, `5%`.",
        plan("sync { bucket = 25 MiB }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0109",
        "module glob without quotes",
        "Names of modules are quoted, whether or not they hold a `*`; bare words are names of the "
        "language. In a quoted glob `*` is one component, `**` any depth, `{0..11}` and `{a,b}` "
        "are choices.",
        plan('fuse "gelu" { match = bias -> aten.gelu  in = layers.*.mlp }'),
        plan('fuse "gelu" { match = bias -> aten.gelu  in = "layers.*.mlp" }'),
    ),
    Code(
        "SG0110",
        "no `=`, or no name",
        "A name and its value are joined by `=`, in attributes and in `let`.",
        plan("sync { overlap: prefer }"),
        plan("sync { overlap = prefer }"),
    ),
    Code(
        "SG0111",
        "attribute outside a block",
        "Only `let`, `override` and blocks stand at the top of a file; attributes stand inside the "
        "block they belong to.",
        plan("bucket = 25MiB"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0112",
        "bracket that closes nothing",
        "There is one closing bracket more than were opened, or an opening one was lost.",
        plan("sync { bucket = 25MiB } }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0113",
        "broken head of a block",
        'A block is its kind, a quoted label where it has one, and braces: `guard "batch" { … }`.',
        plan('model G { is = "train:Generator" }'),
        plan('model "G" { is = "train:Generator" }'),
    ),
    Code(
        "SG0114",
        "separator too many",
        "Attributes are separated by a space, with a comma if you like; items of a list by one "
        "comma. Nothing else separates.",
        plan("sync { bucket = 25MiB;  overlap = prefer }"),
        plan("sync { bucket = 25MiB  overlap = prefer }"),
    ),
    Code(
        "SG0115",
        "bracket as a value",
        "Braces only open blocks, and parentheses hold the arguments of a call. A list of values "
        "has square brackets.",
        plan("host { cores = { 0, 1 } }"),
        plan("host { cores = [0, 1] }"),
    ),
    Code(
        "SG0116",
        "sign without a meaning",
        "This sign does not occur in the language outside of strings and comments. Paths, "
        "addresses and `module:Class` are quoted, a comment begins with `#`, data flow is `->`.",
        plan("sync { bucket = $SIZE }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0117",
        "text in the wrong place",
        "A plan is a header and then `let name = value`, `kind { name = value … }` and "
        '`override "label" { … }` in any order. The parser met something that fits none of them.',
        plan("= sync { }"),
        plan("sync { }"),
    ),
    Code(
        "SG0118",
        "operator without one of its sides",
        "`->`, `|`, `..`, `.` and `::` join two things; one is missing or of a wrong kind.",
        plan('fuse "gelu" { match = bias -> }'),
        plan('fuse "gelu" { match = bias -> aten.gelu }'),
    ),
    Code(
        "SG0119",
        "list without commas",
        "Items of a list and arguments of a call are separated by commas.",
        plan("host { cores = [0 1] }"),
        plan("host { cores = [0, 1] }"),
    ),
    Code(
        "SG0120",
        "file that is not text",
        "A plan is UTF-8 text. The message names the first byte that is not.",
        found="run",
    ),
    Code(
        "SG0121",
        "`--set` that cannot be read",
        "`--set` takes the address of one attribute and a value in the spelling of the language: "
        "`--set sync.bucket=4MiB`, `--set fuse.bias_gelu.use=off`. Strings keep their quotes, so "
        "the shell needs its own around them.",
        found="run",
    ),
    Code(
        "SG0122",
        "brackets nested too deeply",
        "No plan needs more than a few brackets inside one another; beyond 32 the text is taken "
        "for damaged or hostile and is not read.",
        plan(f"let mlp = {'[' * 33}{']' * 33}"),
        plan('let mlp = ["layers.*.mlp"]'),
    ),
    Code(
        "SG0200",
        "unknown attribute",
        "The block has no attribute of this name. A name that is close is suggested; a name that "
        "belongs to another block is sent there.",
        plan("sync { buckt = 25MiB }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0201",
        "unknown block",
        "The language has no block of this kind.",
        plan("synch { bucket = 25MiB }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0202",
        "unknown unit",
        "Units are spelled one way: B, KiB, MiB, GiB, KB, MB, GB; us, ms, s, min, h; steps; "
        "modules; %; /s. `mb` might be a million bytes or 1024², so it is not guessed.",
        plan("sync { bucket = 25mb }"),
        plan("sync { bucket = 25MB }"),
    ),
    Code(
        "SG0203",
        "wrong or missing unit",
        "Sizes, times, rates, percentages, steps and modules bear their unit; counts and "
        "tolerances have none. A number without its unit would be read differently by different "
        "people.",
        plan("sync { bucket = 25 }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0204",
        "wrong type",
        "The attribute takes another kind of value than the one written.",
        plan('capture { recompiles = "many" }'),
        plan("capture { recompiles = 8 }"),
    ),
    Code(
        "SG0205",
        "unknown word",
        "The attribute knows a few words and this is none of them. There are no booleans: `true` "
        "would not say whether a thing is wished for or required.",
        plan("sync { overlap = true }"),
        plan("sync { overlap = required }"),
    ),
    Code(
        "SG0206",
        "quotes too many or too few",
        "Words and numbers are bare; strings, paths and names of modules are quoted.",
        plan('sync { overlap = "prefer" }'),
        plan("sync { overlap = prefer }"),
    ),
    Code(
        "SG0207",
        "name that stands for nothing",
        "A bare word where a selector, a number or a string is due must be a `let` of this file, "
        "or a family of ops.",
        plan('fuse "gelu" { match = bias -> gelu_like }'),
        plan('let gelu_like = aten.gelu | aten.silu\n\nfuse "g" { match = bias -> gelu_like }'),
    ),
    Code(
        "SG0208",
        "op in quotes",
        "Ops are bare and modules are quoted; that is how the two are told apart.",
        plan('fuse "gelu" { match = bias -> "aten.gelu" }'),
        plan('fuse "gelu" { match = bias -> aten.gelu }'),
    ),
    Code(
        "SG0209",
        "op or module in the wrong place",
        "Ops of torch are written `aten.gelu`, ops of other libraries `library::op`, families are "
        "single words, modules are quoted.",
        plan('fuse "scan" { match = mylib.scan }'),
        plan('fuse "scan" { match = mylib::scan }'),
    ),
    Code(
        "SG0210",
        "number out of range",
        "The number is smaller than anything the attribute can mean.",
        plan("mesh { data = 0 }"),
        plan("mesh { data = 2 }"),
    ),
    Code(
        "SG0211",
        "string of the wrong form",
        "The string should name something of a certain form, like `module:Class`.",
        plan('capture { region = "train.GPT" }'),
        plan('capture { region = "train:GPT" }'),
    ),
    Code(
        "SG0212",
        "call without its arguments",
        "The call needs more arguments than were written.",
        plan('fuse "norm" { match = norm  with = triton() }'),
        plan('fuse "norm" { match = norm  with = triton("norm.py:layer_norm") }'),
    ),
    Code(
        "SG0213",
        "argument that a call does not take",
        "The call has no argument of this name or place, or has it twice.",
        plan('fuse "norm" { match = norm  with = triton("n.py:f", ref = "n.py:g") }'),
        plan('fuse "norm" { match = norm  with = triton("n.py:f", reference = "n.py:g") }'),
    ),
    Code(
        "SG0214",
        "reversed range",
        "A range is `low..high`, both ends included.",
        plan('precision "warm" { steps = 200..0  compute = fp32 }'),
        plan('precision "warm" { steps = 0..200  compute = fp32 }'),
    ),
    Code(
        "SG0215",
        "broken module glob",
        "A glob is names joined by dots, with `*` for one component, `**` for any depth, `{0..11}` "
        "and `{a,b}` for choices. Names are those of the model before any wrapper: no `module.` "
        "and no `_orig_mod.`.",
        plan('fuse "gelu" { match = bias -> aten.gelu  in = "module.layers.*" }'),
        plan('fuse "gelu" { match = bias -> aten.gelu  in = "layers.*" }'),
    ),
    Code(
        "SG0216",
        "broken path of a guard",
        "A guard watches a size, the type or the device of an argument (`input[0].shape[1]`, "
        '`input["ids"].dtype`, `input[*].device`), an argument itself (`input["temperature"]`), or '
        'an attribute of a module (`module["layers.0"].counter`, `module.counter`).',
        plan('guard "batch" { on = input.shape }'),
        plan('guard "batch" { on = input[0].shape[0] }'),
    ),
    Code(
        "SG0217",
        "value that `let` cannot hold",
        "A `let` stands for a selector, a number, a string or a list of them.",
        plan("let early = 0..199"),
        plan("let heavy = matmul | conv"),
    ),
    Code(
        "SG0218",
        "block without its label",
        "Blocks that may repeat and say what a rule is for bear a label: it is their address in "
        "errors, listings and `--set`.",
        plan("guard { on = input[0].shape[0] }"),
        plan('guard "batch" { on = input[0].shape[0] }'),
    ),
    Code(
        "SG0219",
        "label on a block that has none",
        "The block occurs once, and its kind is its address.",
        plan('mesh "all" { data = rest }'),
        plan("mesh { data = rest }"),
    ),
    Code(
        "SG0220",
        "label that cannot be an address",
        "Labels are letters, digits, `_` and `-`, and do not start with a digit: they are written "
        "bare in `--set`.",
        plan('model "my model" { is = "train:GPT" }'),
        plan('model "my_model" { is = "train:GPT" }'),
    ),
    Code(
        "SG0221",
        "block written twice",
        "Two blocks have the same address. The later one does not win: both are shown.",
        plan("sync { bucket = 25MiB }\nsync { overlap = prefer }"),
        plan("sync { bucket = 25MiB  overlap = prefer }"),
    ),
    Code(
        "SG0222",
        "unknown model",
        "`model` names a `model` block of the same plan.",
        plan('model "G" { is = "gan:Generator" }\nsync "d" { model = "D" }'),
        plan('model "G" { is = "gan:Generator" }\nsync "g" { model = "G" }'),
    ),
    Code(
        "SG0223",
        "attribute written twice",
        "An attribute is set once in a block. The later one does not win: both are shown.",
        plan("sync { bucket = 25MiB  bucket = 1MiB }"),
        plan("sync { bucket = 25MiB }"),
    ),
    Code(
        "SG0224",
        "block without an attribute it needs",
        "The block says nothing without this attribute, and no default could stand for it.",
        plan('model "G" { nth = 1 }'),
        plan('model "G" { is = "gan:Generator"  nth = 1 }'),
    ),
    Code(
        "SG0225",
        "`let` with a name of the language",
        "A `let` may not be called like a block, a family or a word: a reader could not tell which "
        "one a use means.",
        plan('let norm = "layers.*.ln"'),
        plan('let my_norm = "layers.*.ln"'),
    ),
    Code(
        "SG0226",
        "overrides that collide",
        "Two overrides that can hold at the same time set the same attribute. Neither wins.",
        plan(
            'override "many" { world = 8..  sync { bucket = 100MiB } }\n'
            'override "more" { world = 16..  sync { bucket = 200MiB } }'
        ),
        plan(
            'override "many" { world = 8..15  sync { bucket = 100MiB } }\n'
            'override "more" { world = 16..  sync { bucket = 200MiB } }'
        ),
    ),
    Code(
        "SG0227",
        "attribute without an effect",
        "The attribute is written and nothing would read it, whatever override holds. A plan that "
        "says things that do not happen misleads its readers.",
        plan("sync { by = stock  bucket = 25MiB }"),
        plan("sync { by = hooks  bucket = 25MiB }"),
    ),
    Code(
        "SG0228",
        "`let` twice",
        "A name stands for one value in the whole file, wherever the `let` is written.",
        plan('let mlp = "layers.*.mlp"\nlet mlp = "blocks.*.mlp"'),
        plan('let mlp = "layers.*.mlp"\nlet mlp_late = "blocks.*.mlp"'),
    ),
    Code(
        "SG0229",
        "`let` in a circle",
        "The names stand for one another and for nothing else.",
        plan("let a = b\nlet b = a"),
        plan("let a = b\nlet b = matmul"),
    ),
    Code(
        "SG0230",
        "not built yet",
        "The language has it, and it was read and checked, but this version cannot do it. It is "
        "refused because a plan that is ignored in part would be worse.",
        plan("checkpoint { every = 50steps }"),
        plan("checkpoint { every = 50steps  use = off }"),
    ),
    Code(
        "SG0231",
        "override that changes nothing",
        "An override is a condition (`world`, `device`) and blocks. Without a condition it always "
        "holds and belongs into the file; without blocks it sets nothing.",
        plan('override "eight" { world = 8.. }'),
        plan('override "eight" { world = 8..  sync { bucket = 100MiB } }'),
    ),
    Code(
        "SG0232",
        "`let` that stands for too much",
        "Names may stand for values that use other names. Followed to their ends they must come "
        "to 200 uses or fewer, so that a few lines cannot stand for a million selectors.",
        plan(
            "\n".join(
                [f"let x{i} = x{i + 1} | x{i + 1}" for i in range(8)] + ['let x8 = "layers.*"']
            )
        ),
        plan('let x7 = x8 | norm\nlet x8 = "layers.*"'),
    ),
    Code(
        "SG0233",
        "two blocks for one model",
        "At most one `capture`, `sync` or `update` block speaks for a model, and at most one for "
        "all models that no other names.",
        plan('sync { bucket = 25MiB }\nsync "small" { bucket = 1MiB }'),
        plan(
            'model "D" { is = "gan:Critic" }\n'
            'sync { bucket = 25MiB }\nsync "small" { model = "D"  bucket = 1MiB }'
        ),
    ),
    Code(
        "SG0234",
        "two names for one model",
        "A `model` block names one instance of a class, the first unless `nth` says which.",
        plan('model "A" { is = "gan:Net" }\nmodel "B" { is = "gan:Net" }'),
        plan('model "A" { is = "gan:Net" }\nmodel "B" { is = "gan:Net"  nth = 1 }'),
    ),
)
