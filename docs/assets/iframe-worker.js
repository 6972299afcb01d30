/* Browsers start no worker for a page from the disk: the search then runs in a frame. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.scope.document.createElement("script")
      script.src = url
      this.ready = new Promise(resolve => (script.onload = resolve))
      this.scope.document.body.append(script)
    }
    async postMessage(data) {
      await this.ready
      this.scope.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.scope.frameElement.remove()
    }
  }
