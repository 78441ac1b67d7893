"""The server: one engine a model, OpenAI's and Ollama's faces, and a web page.

engine.py     requests join and leave a model's batch
models.py     the models by name; replies on their way from the engine
fields.py     what clients send, checked
answers.py    whole answers and streams
openai.py ollama.py     the faces
page/         the web page: files that browsers load as they are
app.py        who may call, limits, paths
run.py        sockets and signals
"""
