"""Words that invented values are made of. Nobody here exists.

Towns, streets and shops are made up; telephone numbers lie in the range 555-0100 to
555-0199 and mail domains are those that are reserved for examples (RFC 2606).
"""


def _words(text: str) -> tuple[str, ...]:
    """Cut at white space."""
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    """Cut at bars."""
    return tuple(" ".join(part.split()) for part in text.split("|"))


FIRST_NAMES = _words(
    """
    Abigail Adrian Aisha Alan Alice Amara Amir Ana Andre Anika Anton Ariel Arthur Asha
    Beatriz Benjamin Bianca Bilal Boris Brenda Caleb Camila Carl Carmen Cecilia Chen
    Clara Colin Dalia Damian Daniela Darius David Deborah Diego Dmitri Edith Eduardo
    Elena Elias Emily Emre Enrique Erika Esther Ethan Fatima Felix Fiona Francis Gabriel
    Gemma Gerald Gina Grace Greta Hannah Harold Hassan Hector Helen Hiroshi Ibrahim Ida
    Imani Ines Irene Isaac Ivan Jacob Jamal Janet Jasmine Javier Jelena Joan Jonas Jorge
    Judith Julia Kaito Karen Karim Kenji Kofi Laila Lars Laura Leon Leticia Liam Lidia
    Lucia Magnus Malik Marcus Margaret Maria Martin Maya Mei Miguel Mina Monica Nadia
    Naomi Nathan Nikolai Nina Noah Nora Olga Oliver Omar Oscar Pablo Patricia Paula
    Pedro Petra Priya Rafael Rahul Ramona Raymond Rebecca Ricardo Rosa Ruth Samir Sandra
    Santiago Sara Sebastian Selma Simon Sofia Stefan Sunita Tamara Tariq Teresa Theo
    Tomas Ursula Valeria Vera Victor Vincent Wanda Walter Xavier Yara Yusuf Yvonne Zara
    """
)
LAST_NAMES = _words(
    """
    Abbott Acosta Adeyemi Ahmed Albright Almeida Andersson Aquino Arslan Ashworth Baker
    Banerjee Barros Becker Bellamy Bergstrom Bianchi Blackwood Bouchard Bradley Brennan
    Calloway Campos Carver Castillo Chandra Chavez Cho Christensen Clayton Cohen
    Contreras Cooper Cortez Dalton Das Delgado Demir Desai Dixon Dominguez Donnelly
    Duarte Dubois Eastwood Eklund Ellison Eriksen Espinoza Farrell Ferreira Fischer
    Fleming Fontaine Foster Fujita Gallagher Garrison Ghosh Gilmore Gonzalez Goodwin
    Greenfield Gupta Haddad Hamilton Hartmann Hassan Hawkins Hendricks Herrera Hoffmann
    Holloway Hussain Ibarra Ito Jansen Jensen Jimenez Kapoor Karlsson Keller Kennedy
    Khan Kimura Kowalski Kuznetsov Lambert Larsen Leblanc Lindgren Lopez Lund MacLeod
    Malone Marchetti Marquez McCarthy Mehta Mendoza Meyer Molina Moreau Morgan Mwangi
    Nakamura Navarro Nguyen Nielsen Novak Obrien Okafor Olsen Ortega Osman Pacheco Park
    Patel Pereira Petrov Popescu Prescott Quintero Ramirez Rao Reyes Richter Rivera
    Romano Rossi Russo Saito Salazar Santos Sato Schneider Serrano Shah Silva Singh
    Sorensen Soto Stafford Stewart Sullivan Takahashi Thornton Torres Uddin Valdez
    Vargas Vasquez Volkov Wagner Wallace Weaver Whitaker Winslow Wong Yamada Yilmaz York
    Zamora Zhang Zimmermann
    """
)
STREETS = _words(
    """
    Alder Amberly Ashgrove Aspen Beacon Birchwood Bluebell Bramble Brookside Canterfield
    Cedar Chestnut Clover Cobblestone Copper Cypress Dogwood Eastfield Elmhurst
    Fairhaven Fernleaf Foxglove Garnet Glenwood Granite Harvest Hawthorn Hazel Hillcrest
    Juniper Kingsbridge Larkspur Laurel Linden Magnolia Maple Meadow Millpond Northgate
    Oakridge Orchard Pinecrest Poplar Quarry Redwood Ridgeway Rosemary Sandpiper
    Silverleaf Spruce Stonebridge Summit Sycamore Thistle Tulip Valley Walnut Westbrook
    Willow Windmill
    """
)
STREET_TYPES = ("Street", "Avenue", "Road", "Lane", "Drive", "Court", "Way", "Terrace")
TOWNS = _phrases(
    """
    Abernathy|Alderbrook|Ashmere|Barrowfield|Bellhaven|Birchport|Briarton|
    Brookhollow|Calderwick|Cedar Bluff|Clearmont|Coldspring|Crestfall|Dunmere|
    East Harlow|Elkridge|Fairwater|Fenwick|Foxborough|Glenhaven|Goldcrest|
    Greywater|Harrowgate|Hazelton Falls|Hollowbrook|Ironwood|Juniper Hills|
    Kestrel Bay|Kingsmere|Lakemont|Larkfield|Linwood Park|Maplewick|
    Marlow Springs|Millhaven|Mossridge|New Alder|North Fenton|Oakhurst|
    Otter Creek|Pinewell|Port Calder|Quillby|Ravenport|Redfern|Rosedale Point|
    Saltmarsh|Sandhurst|Silverton Grove|South Barrow|Stonewick|Summerfield|
    Thornbury|Tidewater|Upper Larch|Valemont|Westmere|Whitcombe|Willowdale|
    Wrenfield
    """
)
STATES = _words(
    """
    AL AZ AR CA CO CT DE FL GA IA ID IL IN KS KY LA MA MD ME MI MN MO MT NC ND NE NH NJ
    NM NV NY OH OK OR PA RI SC SD TN TX UT VA VT WA WI WV WY
    """
)
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August",
    "September", "October", "November", "December",
)  # fmt: skip
MAIL_DOMAINS = ("example.com", "example.org", "example.net", "mail.example.com")

PRODUCTS = _phrases(
    """
    desk lamp|office chair|coffee grinder|winter jacket|running shoes|
    electric kettle|garden hose|bluetooth speaker|rain boots|wool blanket|
    mountain bike|camping tent|tablet case|wireless keyboard|floor rug|bookshelf|
    toaster|standing desk|yoga mat|hiking backpack|air purifier|frying pan|
    baby stroller|laptop sleeve|denim shirt|phone charger|rice cooker|wall clock|
    dining table|leather wallet|vacuum cleaner|bath towel set|picture frame|
    cordless drill|summer dress|travel pillow|board game|umbrella|
    noise cancelling headphones|mattress topper|sewing machine|fish tank|sunglasses|
    water bottle|gaming mouse|space heater|cutting board|paint roller
    """
)
COLORS = (
    "black", "white", "navy blue", "forest green", "red", "grey", "beige", "teal",
    "mustard yellow", "brown", "purple", "silver",
)  # fmt: skip
MATERIALS = (
    "cotton", "recycled polyester", "oak", "bamboo", "stainless steel", "aluminium",
    "linen", "merino wool", "tempered glass", "cork", "ceramic", "walnut",
)  # fmt: skip
WEEKDAYS = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
WEATHER = (
    "sunny", "rainy", "cold", "windy", "foggy", "snowy", "hot", "mild", "stormy",
)  # fmt: skip
