"""Turns of invented dialogues that name nobody: goods, prices, rules, the weather.

`{lower}` slots are filled with public values. Questions and answers come in pairs.
"""

PUBLIC_CLOSINGS = (
    ("Thanks, that is all.", "You are welcome. Have a nice day!"),
    ("Great, that helps.", "My pleasure. Goodbye!"),
    ("I will think about it.", "Take your time, the offer stays open."),
    ("Perfect, bye.", "Thank you for stopping by."),
    ("Good to know.", "Happy to help. Enjoy the {weather} weather!"),
    ("Okay, I will order it then.", "Wonderful, see you at checkout."),
    ("No more questions.", "Then I wish you a pleasant {weekday}."),
    ("That was quick.", "We try our best. Bye!"),
)
PUBLIC_TOPICS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("How much is the {color} {product}?", "What does the {product} cost now?"),
        (
            "It costs {price}, or {price} each if you buy {quantity}.",
            "The {product} is {price} this week, {percent} percent off.",
        ),
    ),
    (
        ("Do you have the {product} in {color}?", "Is the {product} in stock?"),
        (
            "Yes, {quantity} are left. The item number is {item}.",
            "Not today. Item {item} is back in {days} days.",
        ),
    ),
    (
        ("How long does shipping take?", "When would a {product} arrive?"),
        (
            "Standard shipping takes {days} days and costs {fee}.",
            "Express arrives in {hours} hours, the rest in {days} days.",
        ),
    ),
    (
        ("What is your return policy?", "Can I return a {product} if I dislike it?"),
        (
            "You may return anything within {days} days if it is unused.",
            "Yes, for {days} days. Opened boxes cost {fee} to restock.",
        ),
    ),
    (
        ("Which cards do you take?", "Can I pay in parts?"),
        (
            "We take all major cards, gift cards and bank transfers.",
            "You can pay {fee} a month for {months} months without interest.",
        ),
    ),
    (
        ("How long is the warranty on a {product}?", "Is there any warranty?"),
        (
            "Every {product} has {months} months of warranty.",
            "The motor is covered for {months} months, other parts for {days} days.",
        ),
    ),
    (
        ("What is the {product} made of?", "Is the {product} made of {material}?"),
        (
            "It is {percent} percent {material}, the rest is {other_material}.",
            "The frame is {material} and the cover is {other_material}.",
        ),
    ),
    (
        ("How big is the {product}?", "Will the {product} fit in a small car?"),
        (
            "It measures {size} by {size} by {size} centimeters.",
            "The box weighs {quantity} kilograms and is {size} centimeters long.",
        ),
    ),
    (
        ("When are you open?", "Is the shop open on {weekday}?"),
        (
            "We open at {time} and close at {time} every day but {weekday}.",
            "On {weekday} we are here until {time}.",
        ),
    ),
    (
        ("How does the loyalty program work?", "What do I get for my points?"),
        (
            "You earn {quantity} points for every {fee} that you spend.",
            "For {points} points you get a voucher of {fee}.",
        ),
    ),
    (
        ("Do you sell gift cards?", "How long is a gift card valid?"),
        (
            "Gift cards start at {fee} and are valid for {months} months.",
            "They never expire and work in all {quantity} shops.",
        ),
    ),
    (
        ("Is the {product} hard to put together?", "Do I need tools for it?"),
        (
            "Most people need {hours} hours and one screwdriver.",
            "No tools needed, there are only {quantity} parts.",
        ),
    ),
    (
        ("How do I clean the {product}?", "Can the {product} go in the wash?"),
        (
            "Use cold water and a soft cloth, never bleach.",
            "Wash it at {degrees} degrees and let it dry in the shade.",
        ),
    ),
    (
        ("Do you ship abroad?", "What does shipping to another country cost?"),
        (
            "We ship to {quantity} countries, from {fee} a parcel.",
            "It depends on weight: {fee} below {quantity} kilograms.",
        ),
    ),
    (
        ("Do you match prices?", "I saw the {product} for {price} elsewhere."),
        (
            "We match any price within {days} days of your purchase.",
            "Send us the link and we take {percent} percent off on top.",
        ),
    ),
    (
        ("Which {product} is the best?", "Is model {item} better than {other_item}?"),
        (
            "Model {item} is lighter, model {other_item} lasts longer.",
            "Customers gave item {item} a rating of {rating} stars.",
        ),
    ),
    (
        ("How is the weather where you are?", "Nice and {weather} today, right?"),
        (
            "It is {weather}, about {degrees} degrees, and I am stuck indoors.",
            "They say it will be {weather} until {weekday}.",
        ),
    ),
    (
        ("Are you a robot?", "How many people work there?"),
        (
            "I am a person, one of {quantity} on this shift.",
            "Partly. A program answers the first {quantity} questions.",
        ),
    ),
    (
        ("Can I recycle the box?", "What happens to old {product}s?"),
        (
            "All boxes are {percent} percent recycled paper.",
            "Bring the old one back and we recycle the {material}.",
        ),
    ),
    (
        ("Do you have a student discount?", "Is there a sale coming?"),
        (
            "Students get {percent} percent off with code SAVE{percent}.",
            "The next sale starts on {weekday}, with up to {percent} percent off.",
        ),
    ),
)
