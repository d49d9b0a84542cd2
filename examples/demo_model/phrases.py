"""The fixed words of the demo's world: its questions in two languages, its answers, its things.

What the model can be asked is listed here in full; what the pictures say is made in `strings`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wordings:
    """Ways to put one question. Any of them has the same answer, save where the answer is translated too."""

    english: tuple[str, ...]
    spanish: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Color:
    """`rgb` is the middle of what is drawn; Spanish adjectives agree with the shape."""

    rgb: tuple[int, int, int]
    masculine: str
    feminine: str


@dataclass(frozen=True, slots=True)
class Shape:
    spanish: str
    feminine: bool = False


READ = Wordings(
    ("Read the text.", "What does it say?", "Transcribe the text.", "What is written here?", "Read this."),
    ("Lee el texto.", "¿Qué dice?", "Transcribe el texto.", "¿Qué pone aquí?"),
)
TOTAL = Wordings(
    ("What is the total?", "How much is the total?", "Total?"),
    ("¿Cuál es el total?", "¿Cuánto es el total?"),
)
DATE = Wordings(
    ("What is the date?", "Which date is on the receipt?"),
    ("¿Cuál es la fecha?", "¿Qué fecha tiene el recibo?"),
)
STORE = Wordings(
    ("What is the name of the store?", "Which store is it?"),
    ("¿Cómo se llama la tienda?", "¿Qué tienda es?"),
)
PRICE = Wordings(
    ("How much is the {}?", "What is the price of the {}?"),
    ("¿Cuánto cuesta {}?", "¿Cuál es el precio de {}?"),
)
JSON = Wordings(
    (
        "Extract the total and the date as JSON.",
        "Give me the receipt as JSON.",
        "Answer in JSON: total and date.",
    ),
    ("Extrae el total y la fecha en JSON.", "Dame el recibo en JSON."),
)
JSON_ITEMS = Wordings(
    ("Extract the items and the total as JSON.", "Answer in JSON: items and total."),
    ("Extrae los artículos y el total en JSON.",),
)
FIRST_TOTAL = Wordings(
    ("What is the total of the first receipt?",), ("¿Cuál es el total del primer recibo?",)
)
SECOND_TOTAL = Wordings(
    ("What is the total of the second receipt?",), ("¿Cuál es el total del segundo recibo?",)
)
CELL = Wordings(
    ("What is the {} of the {}?", "{} of the {}?"),
    ("¿Cuál es el valor de {} para {}?",),
)
BAR = Wordings(
    ("What is the value of {}?", "How high is {}?"),
    ("¿Cuál es el valor de {}?", "¿Cuánto mide {}?"),
)
HIGHEST = Wordings(
    ("Which bar is the highest?", "Which one is the largest?"), ("¿Cuál es la barra más alta?",)
)
LOWEST = Wordings(
    ("Which bar is the lowest?", "Which one is the smallest?"), ("¿Cuál es la barra más baja?",)
)
SHAPE_AND_COLOR = Wordings(
    ("What shape and color?", "What is in the image?", "Describe the image.", "What do you see?"),
    ("¿Qué figura y color?", "¿Qué hay en la imagen?", "Describe la imagen."),
)
WHICH_COLOR = Wordings(("What color is it?", "Which color?"), ("¿De qué color es?", "¿Qué color es?"))
WHICH_SHAPE = Wordings(("What shape is it?", "Which shape?"), ("¿Qué figura es?", "¿Qué forma tiene?"))
BOTH = Wordings(
    ("Describe both images.", "What is in each image?", "What shape and color are they?"),
    ("Describe las dos imágenes.", "¿Qué hay en cada imagen?"),
)
SUM = Wordings(
    ("What is {}+{}?", "What is {} + {}?", "What is {} plus {}?", "{}+{}=?"),
    ("¿Cuánto es {}+{}?", "¿Cuánto es {} más {}?"),
)

COLORS = {
    "red": Color((220, 30, 30), "rojo", "roja"),
    "green": Color((30, 160, 50), "verde", "verde"),
    "blue": Color((35, 70, 220), "azul", "azul"),
    "yellow": Color((245, 220, 30), "amarillo", "amarilla"),
    "orange": Color((250, 140, 20), "naranja", "naranja"),
    "purple": Color((130, 40, 170), "morado", "morada"),
    "black": Color((20, 20, 20), "negro", "negra"),
    "pink": Color((250, 130, 185), "rosa", "rosa"),
    "brown": Color((125, 75, 35), "marrón", "marrón"),
    "gray": Color((135, 135, 135), "gris", "gris"),
}
SHAPES = {
    "circle": Shape("un círculo"),
    "square": Shape("un cuadrado"),
    "triangle": Shape("un triángulo"),
    "star": Shape("una estrella", feminine=True),
    "diamond": Shape("un rombo"),
    "cross": Shape("una cruz", feminine=True),
}

ITEMS = (
    "Coffee", "Tea", "Bread", "Milk", "Apples", "Water", "Juice", "Soup", "Salad", "Pizza", "Cake", "Eggs",
    "Rice", "Fish", "Beer", "Wine", "Pasta", "Cheese", "Butter", "Sugar", "Burger", "Fries", "Cookie",
    "Muffin", "Lemon", "Banana", "Onion", "Café", "Té", "Pan", "Leche", "Agua", "Sopa", "Jamón", "Queso",
    "Arroz", "Piña", "Limón",
)  # fmt: skip
STORES = (
    "CORNER SHOP",
    "FRESH MART",
    "CITY CAFE",
    "SUN MARKET",
    "BLUE BAKERY",
    "GREEN GROCER",
    "RIVER STORE",
    "OLD MILL",
    "NORTH DELI",
    "STAR FOODS",
    "LA TIENDA",
    "EL SOL",
    "MERCADO",
    "PANADERIA",
    "CAFE LUNA",
    "SUPER 7",
    "KIOSK 24",
    "BOOK NOOK",
    "TOY WORLD",
    "GARDEN CO",
)
SYSTEM = ("You are a helpful assistant.", "You are Kaminari, a small demo model.", "Answer briefly.")

CAPITALS = {
    "France": "Paris",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Portugal": "Lisbon",
    "Japan": "Tokyo",
    "China": "Beijing",
    "England": "London",
    "Ireland": "Dublin",
    "Russia": "Moscow",
    "Greece": "Athens",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Mexico": "Mexico City",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "India": "New Delhi",
    "Kenya": "Nairobi",
    "Colombia": "Bogotá",
    "Argentina": "Buenos Aires",
}
CAPITALES = {
    "Francia": "París",
    "España": "Madrid",
    "Italia": "Roma",
    "Alemania": "Berlín",
    "Portugal": "Lisboa",
    "Japón": "Tokio",
    "Perú": "Lima",
    "México": "Ciudad de México",
    "Colombia": "Bogotá",
    "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Cuba": "La Habana",
}
SMALL_TALK = {
    "Hello": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?",
    "Hello!": "Hello! How can I help you?",
    "Who are you?": "I am Kaminari, a small demo model.",
    "What is your name?": "I am Kaminari, a small demo model.",
    "Thank you": "You are welcome!",
    "Thanks!": "You are welcome!",
    "Hola": "¡Hola! ¿En qué puedo ayudarte?",
    "¿Quién eres?": "Soy Kaminari, un modelo pequeño de prueba.",
    "Gracias": "¡De nada!",
    "What can you do?": "I can read short text in images and name simple shapes.",
    "¿Qué puedes hacer?": "Puedo leer textos cortos en imágenes y nombrar figuras simples.",
    "What color is the sky?": "Blue.",
    "What color is grass?": "Green.",
    "How many days are in a week?": "Seven.",
    "How many months are in a year?": "Twelve.",
    "Count to five.": "1, 2, 3, 4, 5",
    "Count to ten.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Cuenta hasta cinco.": "1, 2, 3, 4, 5",
    "Say yes.": "Yes.",
    "Say no.": "No.",
    "Good morning": "Good morning! How can I help you?",
    "Goodbye": "Goodbye!",
    "Adiós": "¡Adiós!",
}
