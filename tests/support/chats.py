"""Chat templates of six families, and small tokenizers that they belong to.

Marks of `generation` say which part of a turn its assistant writes: transformers reads
them, the library never sees them.
"""

import json
from dataclasses import dataclass, replace

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{{ '<start_of_turn>model\n' }}"
    "{% generation %}{{ message['content'] | trim + '<end_of_turn>' }}"
    "{% endgeneration %}"
    "{% else %}{{ '<start_of_turn>' + message['role'] + '\n' }}"
    "{{ message['content'] | trim + '<end_of_turn>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
    "{% else %}{% set turns = messages %}{% endif %}{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' }}"
    "{% if loop.last and system is defined %}{{ system + '\n\n' }}{% endif %}"
    "{{ message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' }}{% generation %}{{ message['content'] | trim + eos_token }}"
    "{% endgeneration %}{% else %}{{ raise_exception('Only user and assistant') }}"
    "{% endif %}{% endfor %}"
)
PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\n' + message['content'] + '<|end|>\n' }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\n' }}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
    "{% else %}{{ eos_token }}{% endif %}"
)
QWEN_2 = (
    "{%- if messages[0]['role'] != 'system' %}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' }}{%- generation %}"
    "{{- message.content + '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}"
    "{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
    "{{- '<|im_end|>\n' }}{%- endif %}{%- else %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN_3 = (
    "{%- for message in messages %}{%- if message.role == 'assistant' %}"
    "{%- set content = message.content %}{%- if '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\n' }}{%- generation %}"
    "{%- if loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- content + '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

HERMES = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}"
    "{%- endif %}{{- '# Tools\n<tools>' }}{%- for tool in tools %}{{- '\n' }}"
    "{{- tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if tools and loop.first and message.role == 'system' %}"
    "{%- elif message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' }}{%- generation %}{{- message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}"
    '{{- \'<tool_call>\n{"name": "\' + call.function.name }}'
    '{{- \'", "arguments": \' }}{{- call.function.arguments | tojson }}'
    "{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>' }}{%- endgeneration %}"
    "{{- '\n' }}{%- elif message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content }}"
    "{{- '\n</tool_response><|im_end|>\n' }}{%- else %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
LLAMA_3_1 = (
    "{{- bos_token }}{%- set ns = namespace(is_first=true) %}"
    "{%- for message in messages %}"
    "{%- if message.tool_calls is defined and message.tool_calls %}"
    "{%- if message.tool_calls | length != 1 %}"
    "{{- raise_exception('This model calls one tool at a time') }}{%- endif %}"
    "{%- set call = message.tool_calls[0].function %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- generation %}"
    '{{- \'{"name": "\' + call.name + \'", "parameters": \' }}'
    "{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}{%- endgeneration %}"
    "{%- elif message.role == 'tool' %}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}"
    "{{- message.content | tojson }}{{- '<|eot_id|>' }}{%- else %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{%- if tools and message.role == 'user' and ns.is_first %}"
    "{%- set ns.is_first = false %}{%- for tool in tools %}"
    "{{- tool | tojson(indent=4) + '\n\n' }}{%- endfor %}{%- endif %}"
    "{%- if message.role == 'assistant' %}{%- generation %}"
    "{{- message.content | trim + '<|eot_id|>' }}{%- endgeneration %}{%- else %}"
    "{{- message.content | trim + '<|eot_id|>' }}{%- endif %}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL_3 = (
    "{{- bos_token }}{%- set ns = namespace(last=-1) %}{%- for message in messages %}"
    "{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- if tools and loop.index0 == ns.last %}{{- '[AVAILABLE_TOOLS][' }}"
    '{%- for tool in tools %}{{- \'{"type": "function", "function": {\' }}'
    "{%- for key, val in tool.function.items() if key != 'return' %}"
    "{%- if val is string %}{{- '\"' + key + '\": \"' + val + '\"' }}{%- else %}"
    "{{- '\"' + key + '\": ' + val | tojson }}{%- endif %}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- '}}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}"
    "{{- '][/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST]' + message.content + '[/INST]' }}{%- elif message.tool_calls %}"
    "{%- generation %}{{- '[TOOL_CALLS][' }}{%- for call in message.tool_calls %}"
    "{%- if call.id is undefined or call.id | length != 9 %}"
    "{{- raise_exception('Ids have nine characters') }}{%- endif %}"
    '{{- \'{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}"
    "{{- ', \"id\": \"' + call.id + '\"}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']' + eos_token }}"
    "{%- endgeneration %}{%- elif message.role == 'assistant' %}{%- generation %}"
    "{{- message.content + eos_token }}{%- endgeneration %}"
    "{%- elif message.role == 'tool' %}"
    "{{- '[TOOL_RESULTS]' + message.content + message.tool_call_id }}"
    "{{- '[/TOOL_RESULTS]' }}{%- else %}"
    "{{- raise_exception('Roles are user, assistant and tool') }}{%- endif %}"
    "{%- endfor %}"
)
PARAMETERS = HERMES.replace(
    '{{- \'<tool_call>\n{"name": "\' + call.function.name }}'
    '{{- \'", "arguments": \' }}{{- call.function.arguments | tojson }}'
    "{{- '}\n</tool_call>' }}",
    "{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for key, value in call.function.arguments | items %}"
    "{{- '<parameter=' + key + '>\n' }}"
    "{%- if value is mapping or (value is sequence and value is not string) %}"
    "{{- value | tojson }}{%- else %}{{- value | string }}{%- endif %}"
    "{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}",
)
ARGUMENTS_OF_TEXT = HERMES.replace(
    "{{- call.function.arguments | tojson }}", "{{- '' + call.function.arguments }}"
)
CHANNELS = (
    "{%- if tools %}{{- '<|start|>developer<|message|># Tools' }}"
    "{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '<|end|>' }}{%- endif %}{%- set last = namespace(name='') %}"
    "{%- for message in messages %}{%- if message.tool_calls %}"
    "{%- if message.tool_calls | length != 1 %}"
    "{{- raise_exception('This model calls one tool at a time') }}{%- endif %}"
    "{%- set call = message.tool_calls[0].function %}"
    "{{- '<|start|>assistant' }}{%- generation %}{{- ' to=functions.' + call.name }}"
    "{{- '<|channel|>commentary<|message|>' }}{{- call.arguments | tojson }}"
    "{{- '<|call|>' }}{%- endgeneration %}{%- set last.name = call.name %}"
    "{%- elif message.role == 'assistant' %}{{- '<|start|>assistant' }}"
    "{%- generation %}{{- '<|channel|>final<|message|>' + message.content }}"
    "{{- '<|return|>' if loop.last else '<|end|>' }}{%- endgeneration %}"
    "{%- elif message.role == 'tool' %}{{- '<|start|>functions.' + last.name }}"
    "{{- ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{- message.content | tojson }}{{- '<|end|>' }}{%- else %}"
    "{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)

TYPED = HERMES.replace(
    "{{- tool | tojson }}",
    "{%- set one = tool.function %}{{- '// ' + one.description }}"
    "{{- '\ntype ' + one.name + ' = (_: {' }}"
    "{%- for name, spec in one.parameters.properties.items() %}"
    "{%- if spec.description %}{{- '\n// ' + spec.description }}{%- endif %}"
    "{{- '\n' + name + ('' if name in one.parameters.required else '?') + ': ' }}"
    "{%- if spec.enum %}{{- '\"' + spec.enum | join('\" | \"') + '\"' }}{%- else %}"
    "{{- 'number' if spec.type == 'integer' else spec.type }}{%- endif %}"
    "{%- if spec.default is defined %}"
    "{{- ', // default: ' + (spec.default | tojson) }}{%- endif %}"
    "{%- endfor %}{{- '\n}) => any;' }}",
)

TEXTS = (
    "Hello, how can I help you today? My order has not arrived yet. Thank you!",
    "Please tell me your name and your address. I see, the bill was paid twice.",
    "user assistant system model INST im start end of turn think tool response",
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A template and the special tokens that it needs.

    Args:
        marked: the template with marks of `generation`.
        bos, eos: special tokens, if the tokenizer has them.
        special: others.
        plain: tokens that were added without being special.
        rstrip: whether special tokens take the blanks behind them (Phi 3).
        pieces: `bytes`, `first` (a blank before the text, as Llama's) or `spaces`.
    """

    marked: str
    bos: str | None
    eos: str
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    rstrip: bool = False
    pieces: str = "bytes"


FAMILIES = {
    "chatml": Family(
        marked=CHATML,
        bos=None,
        eos="<|im_end|>",
        special=("<|im_start|>", "<|endoftext|>"),
    ),
    "llama_3": Family(
        marked=LLAMA_3,
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        special=("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>"),
    ),
    "gemma": Family(
        marked=GEMMA,
        bos="<bos>",
        eos="<eos>",
        special=("<start_of_turn>", "<end_of_turn>"),
        plain=("\n\n", "\n\n\n", "<table>"),
        pieces="spaces",
    ),
    "mistral": Family(
        marked=MISTRAL,
        bos="<s>",
        eos="</s>",
        special=("[INST]", "[/INST]"),
        pieces="first",
    ),
    "phi_3": Family(
        marked=PHI_3,
        bos="<s>",
        eos="<|endoftext|>",
        special=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        rstrip=True,
        pieces="first",
    ),
    "qwen_2": Family(
        marked=QWEN_2,
        bos=None,
        eos="<|im_end|>",
        special=("<|im_start|>", "<|endoftext|>"),
        plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "qwen_3": Family(
        marked=QWEN_3,
        bos=None,
        eos="<|im_end|>",
        special=("<|im_start|>", "<|endoftext|>"),
        plain=("<think>", "</think>", "<tool_call>", "</tool_call>"),
    ),
}
CALLING = {
    "hermes": Family(
        marked=HERMES,
        bos=None,
        eos="<|im_end|>",
        special=("<|im_start|>", "<|endoftext|>"),
        plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "llama_3_1": Family(
        marked=LLAMA_3_1,
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        special=("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
    ),
    "mistral_3": Family(
        marked=MISTRAL_3,
        bos="<s>",
        eos="</s>",
        special=(
            *("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
            *("[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        ),
        pieces="first",
    ),
}
CALLING |= {
    "parameters": replace(CALLING["hermes"], marked=PARAMETERS),
    "arguments_of_text": replace(CALLING["hermes"], marked=ARGUMENTS_OF_TEXT),
    "channels": Family(
        marked=CHANNELS,
        bos=None,
        eos="<|return|>",
        special=("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"),
    ),
}
"""Families whose templates write calls of tools, and the functions they declare.

Arguments are an object of JSON, or written one by one as in Qwen 3.5, or text as in
DeepSeek; and results may name the function again, as in gpt-oss.
"""
DECLARING = CALLING | {"typed": replace(CALLING["hermes"], marked=TYPED)}
"""With one that declares functions in another language than JSON, as gpt-oss does."""


def unmarked(template: str) -> str:
    """Return a template as people ship it, without marks of `generation`."""
    for mark in ("{% generation %}", "{% endgeneration %}"):
        template = template.replace(mark, "")
    return template.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")


def chat_tokenizer(name: str, *, vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """Train a small tokenizer of a family; the same again for the same name."""
    family = (FAMILIES | DECLARING)[name]
    tokenizer = _bytes() if family.pieces == "bytes" else _pieces(family.pieces)
    ends = [token for token in (family.bos, family.eos) if token]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[*ends, *family.special]
        + ([f"<0x{i:02X}>" for i in range(256)] if family.pieces != "bytes" else []),
        initial_alphabet=sorted(pre.ByteLevel.alphabet())
        if family.pieces == "bytes"
        else [],
    )
    tokenizer.train_from_iterator(TEXTS, trainer=trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=_without_byte_tokens(tokenizer),
        bos_token=family.bos,
        eos_token=family.eos,
        pad_token=family.eos,
        clean_up_tokenization_spaces=False,
    )
    made.add_special_tokens(
        {
            "additional_special_tokens": [
                AddedToken(t, rstrip=family.rstrip, normalized=False, special=True)
                for t in family.special
            ]
        }
    )
    made.add_tokens([AddedToken(t, normalized=False) for t in family.plain])
    made.chat_template = unmarked(family.marked)
    return made


def _bytes() -> Tokenizer:
    """Byte-level BPE, as of GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(kind: str) -> Tokenizer:
    """BPE of SentencePiece, with bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<0x00>"))
    blank = normalizers.Replace(" ", "▁")
    first = [normalizers.Prepend("▁")] if kind == "first" else []
    tokenizer.normalizer = normalizers.Sequence([*first, blank])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _without_byte_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Keep bytes in the vocabulary and out of the added tokens."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        token
        for token in content["added_tokens"]
        if not token["content"].startswith("<0x")
    ]
    return Tokenizer.from_str(json.dumps(content))
