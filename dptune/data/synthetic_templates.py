"""Turns of invented customer-service dialogues.

`{UPPER}` slots hold personal data and become gold spans; `{lower}` slots are public.
A topic holds what users say and what the agent answers, so that turns fit together.
"""

GREETINGS = (
    "Hello, thank you for contacting us. How can I help you today?",
    "Good morning, you have reached customer care. What can I do for you?",
    "Hi there! What brings you here today?",
    "Welcome to the help desk. How may I assist you?",
    "Good afternoon, how can I make your day better?",
    "Hello! You are chatting with the support team. What is going on?",
    "Hi, thanks for waiting. What can I help you with?",
    "Good evening, this is the service desk. What do you need?",
    "Hey, welcome back. What can we do for you?",
    "Hello, the chat line is open. Please tell me what happened.",
)
PERSONAL_TOPICS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tracking": (
        (
            "I ordered a {product} on {DATE} and I can't track it.",
            "Where is my {product}? It should have arrived by {DATE}.",
            "The tracking page for my {color} {product} has not moved for {days} days.",
        ),
        (
            "I see it. The parcel left our warehouse and arrives within {days} days.",
            "It is on the truck and should be delivered on {DATE}.",
            "The carrier was late. I asked them to hurry it to {ADDRESS}.",
        ),
    ),
    "return": (
        (
            "I want to return a {product} because the {color} does not suit me.",
            "The {product} I bought on {DATE} is too small. Can I send it back?",
            "How do I send back a {product}? I never opened the box.",
        ),
        (
            "I sent a return label to {EMAIL}. Drop the box at any post office.",
            "The return is open until {DATE}. You get {price} back.",
            "Done. A driver will pick it up at {ADDRESS}.",
        ),
    ),
    "refund": (
        (
            "I am still waiting for my refund of {price} for the {product}.",
            "You promised a refund on {DATE} but nothing came.",
            "I was charged {price} twice for one {product}.",
        ),
        (
            "The refund of {price} was released and takes {days} business days.",
            "I found the second charge and reversed it as of {DATE}.",
            "I opened a refund case and wrote the details to {EMAIL}.",
        ),
    ),
    "damaged": (
        (
            "My {product} arrived broken and the box was soaked.",
            "The {color} {product} has a crack right across the front.",
            "Two parts were missing from the {product} that came on {DATE}.",
        ),
        (
            "I am sorry. A new {product} will reach {ADDRESS} in {days} days.",
            "Please keep the broken one. The replacement ships on {DATE}.",
            "That should not happen. I took {percent} percent off your next order.",
        ),
    ),
    "wrong item": (
        (
            "I ordered a {color} {product} and got a {other_product} instead.",
            "You sent the wrong size of the {product}.",
            "This is not my parcel, the slip names {OTHER_PERSON}, whoever that is.",
        ),
        (
            "We mixed up two labels. The right one leaves on {DATE}.",
            "Please keep it. I am sending the correct {product} to {ADDRESS}.",
            "A courier will swap it at your door within {days} days.",
        ),
    ),
    "address": (
        (
            "I moved last month and need to change my address.",
            "Please deliver my {product} to my office this time.",
            "My old address still shows up at checkout and I can't remove it.",
        ),
        (
            "Your new address is now {ADDRESS}.",
            "All set, future parcels will go to {ADDRESS} from {DATE}.",
            "I updated it and sent a note to {EMAIL}.",
        ),
    ),
    "login": (
        (
            "I can't log in, the page says that my password is wrong.",
            "My account has been locked since {DATE} and I don't know why.",
            "I no longer get the code that I need to sign in.",
        ),
        (
            "I sent a reset link to {EMAIL}. It works for {hours} hours.",
            "The account {ACCOUNT_ID} is unlocked. Please try again.",
            "We will text a new code to {PHONE} in a minute.",
        ),
    ),
    "billing": (
        (
            "My invoice says {price} but the shop said {price}.",
            "Why was my card charged on {DATE}? I did not buy anything.",
            "I need a copy of the invoice for my {product}.",
        ),
        (
            "That was the yearly fee. I cancelled it and credited {price}.",
            "The invoice went to {EMAIL} just now.",
            "I corrected the bill of {DATE}, you owe nothing.",
        ),
    ),
    "cancel": (
        (
            "I need to cancel my order of {quantity} {product}s.",
            "Can you stop the {product} before it ships?",
            "Please cancel what I ordered on {DATE}, I found it cheaper.",
        ),
        (
            "The order is cancelled and {price} goes back to your card.",
            "It already shipped, so please refuse the parcel on {DATE}.",
            "I stopped it in time. You will hear from us at {EMAIL}.",
        ),
    ),
    "subscription": (
        (
            "When does my subscription end? I thought it was {DATE}.",
            "I want to change from the gold plan to the silver plan.",
            "Somebody renewed my plan for {price} without asking me.",
        ),
        (
            "Your plan now ends on {DATE} and will not renew.",
            "The silver plan starts at once and costs {fee} a month.",
            "I noted your wish on account {ACCOUNT_ID}.",
        ),
    ),
    "warranty": (
        (
            "My {product} stopped working after {days} days.",
            "The motor of the {product} smells burnt. Is it under warranty?",
            "I bought the {product} on {DATE}, do I still have warranty?",
        ),
        (
            "Yes, it is covered. A technician will call {PHONE} on {DATE}.",
            "We will repair it for free, please ship it before {DATE}.",
            "The warranty is valid. A new {product} goes to {ADDRESS}.",
        ),
    ),
    "appointment": (
        (
            "I need to move the delivery appointment for my {product}.",
            "Nobody came on {DATE} although I stayed home all day.",
            "My neighbor {OTHER_PERSON} will accept the {product}, is that fine?",
        ),
        (
            "The new appointment is {DATE} at {time}.",
            "I booked the driver for {DATE}. He will ring {PHONE} before.",
            "I wrote it on the delivery slip for {ADDRESS}, sorry again.",
        ),
    ),
}
ASK_NAME = (
    "I can look into that. May I have your full name?",
    "Sorry to hear that. Who am I speaking with?",
    "Sure, what name is on the account?",
    "Of course. Could you tell me your name please?",
    "Let me check. Your first and last name?",
    "Happy to help. Under which name did you order?",
    "I understand. Please state your full name.",
)
GIVE_NAME = (
    "My name is {PERSON}.",
    "{PERSON}",
    "This is {PERSON}.",
    "It should be under {PERSON}.",
    "I'm {PERSON}, thanks.",
    "Sure, {PERSON}.",
    "{PERSON} is the name.",
    "You can find me as {PERSON}.",
    "The order was placed by {PERSON}.",
)
DETAILS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ORDER_ID": (
        (
            "Thanks {FIRST}. Do you have the order number?",
            "Could you give me the order number please?",
            "And the number on your receipt, {FIRST}?",
            "Which order is this about?",
        ),
        (
            "The order number is {ORDER_ID}.",
            "{ORDER_ID}",
            "Yes, it is {ORDER_ID}.",
            "It says {ORDER_ID} on the slip.",
            "Let me look, {ORDER_ID} I think.",
        ),
    ),
    "EMAIL": (
        (
            "What e-mail address did you use, {FIRST}?",
            "Please verify your e-mail.",
            "Thank you. Which mail address should I look for?",
            "Can I get an e-mail address to confirm?",
        ),
        (
            "It's {EMAIL}.",
            "{EMAIL}",
            "My e-mail is {EMAIL}.",
            "Please use {EMAIL}, not the old one.",
            "I signed up with {EMAIL} I guess.",
        ),
    ),
    "PHONE": (
        (
            "Could you verify your phone number?",
            "Thank you {FIRST}. What number can we reach you at?",
            "Which phone number is on file?",
            "May I call you back? What is your number?",
        ),
        (
            "My number is {PHONE}.",
            "{PHONE}",
            "You can call me at {PHONE} after {time}.",
            "Sure, {PHONE}.",
            "The mobile is {PHONE}.",
        ),
    ),
    "ADDRESS": (
        (
            "Could you please confirm your shipping address?",
            "Where should it be delivered, {FIRST}?",
            "I also need the postal address.",
            "What address do you have on file?",
        ),
        (
            "I live at {ADDRESS}.",
            "{ADDRESS}",
            "Ship it to {ADDRESS} please.",
            "It is {ADDRESS}.",
            "My address is {ADDRESS}.",
        ),
    ),
    "ACCOUNT_ID": (
        (
            "Do you know your account id?",
            "Thanks {FIRST}, and the customer number?",
            "Please read me the id at the top of your profile.",
            "What is the account number?",
        ),
        (
            "My account id is {ACCOUNT_ID}.",
            "{ACCOUNT_ID}",
            "It shows {ACCOUNT_ID} here.",
            "Account {ACCOUNT_ID}.",
            "That would be {ACCOUNT_ID}.",
        ),
    ),
    "DATE": (
        (
            "When did you place the order?",
            "When was it delivered, {FIRST}?",
            "On which day did you buy it?",
            "When did you join us?",
        ),
        (
            "That was {DATE}.",
            "{DATE}",
            "On {DATE}, as far as I remember.",
            "{DATE}, why?",
            "The receipt says {DATE}.",
        ),
    ),
}
CLOSINGS = (
    ("Thanks, that is all.", "You are welcome, {FIRST}. Have a nice day!"),
    ("Great, thank you so much.", "My pleasure. Goodbye!"),
    ("No, nothing else.", "Thank you for shopping with us, {FIRST}."),
    ("Perfect, bye.", "Take care, {FIRST}."),
    ("OK, I will wait then.", "Please write again if it does not work out."),
    ("That was quick, thanks.", "Glad I could help. Bye!"),
    ("I hope it works this time.", "It will, {FIRST}. Good night."),
    ("Fine by me.", "Wonderful. Enjoy the rest of your day."),
    ("You saved my week.", "Happy to hear that, {FIRST}!"),
    ("Okay, goodbye.", "Goodbye and stay well."),
)
