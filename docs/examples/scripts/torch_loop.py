"""Fine-tune a causal language model on records of a JSON Lines file, in a torch loop.

python torch_loop.py --model gpt2 --train_file notes.jsonl --output_dir out
"""

from argparse import ArgumentParser

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    get_scheduler,
)


def main() -> None:
    """Tokenize every record by itself, train, and save."""
    parser = ArgumentParser()
    for name in ("--model", "--train_file", "--output_dir"):
        parser.add_argument(name, required=True)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_epochs", type=int, default=3)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="float32")
    data = load_dataset("json", data_files=args.train_file, split="train")
    data = data.map(
        lambda row: tokenizer(row["text"], truncation=True, max_length=64),
        remove_columns=data.column_names,
    )
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    loader = DataLoader(data, args.batch_size, shuffle=True, collate_fn=collate)
    num_steps = args.num_epochs * len(loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    scheduler = get_scheduler("linear", optimizer, 0, num_steps)

    model.train()
    for epoch in range(args.num_epochs):
        total = 0.0
        for batch in loader:
            batch = {name: column.to(model.device) for name, column in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += loss.item()
        print(f"epoch {epoch}: mean loss {total / len(loader):.3f}")
    model.save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
